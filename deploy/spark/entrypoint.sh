# What Spark on Kubernetes asks of an image: "executor" and "driver" with their facts in the environment. Anything
# else is a command. pip's pyspark has no such script.
set -euo pipefail

case "${1:-}" in
executor)
    # SPARK_JAVA_OPT_0, _1, …: one argument each, in the order of their numbers.
    options=()
    for ((number = 0; ; number++)); do
        name="SPARK_JAVA_OPT_$number"
        [[ -v $name ]] || break
        options+=("${!name}")
    done
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
    ;;
driver)
    shift
    exec spark-submit --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
*)
    exec "$@"
    ;;
esac
