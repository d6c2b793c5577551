curl -s -u guest:guest -X PUT http://127.0.0.1:8080/v1/topics/sensors -o /dev/null
curl -s -u guest:guest http://127.0.0.1:8080/v1/bindings -o /dev/null \
     -d '{"source": "amq.topic", "destination": "sensors", "routing_key": "sensors.#"}'
