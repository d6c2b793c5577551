import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pyspark_braid  # noqa: F401  so that Spark's workers run this Python, venv activated or not

lake = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

readings = (
    spark.readStream.format("braid")
    .option("url", "http://127.0.0.1:8080")
    .option("topic", "sensors")
    .option("startingOffsets", "earliest")
    .option("format", "json")
    .schema("room STRING, celsius DOUBLE, at TIMESTAMP")
    .load()
)
windows = (
    readings.withWatermark("at", "10 minutes")  # a reading may be so late
    .groupBy(f.window("at", "5 minutes"), "room")
    .agg(f.avg("celsius").alias("mean"), f.max("celsius").alias("highest"), f.count("*").alias("n"))
    .selectExpr("window.start", "room", "mean", "highest", "n")
)
query = (
    windows.writeStream.format("braid_lake")
    .option("path", f"{lake}/windows")
    .option("checkpointLocation", f"{lake}/checkpoint")
    .trigger(availableNow=True)  # or processingTime="10 seconds", to go on for ever
    .start()
)
query.awaitTermination()
spark.stop()
