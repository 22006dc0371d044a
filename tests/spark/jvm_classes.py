"""Spark's classes as a JVM keeps them for the next one (class data sharing), made once in a checkout.

    python -m tests.spark.jvm_classes FILE

A JVM that has them takes 6 s of CPU less to come to its first results, and the group starts more than a dozen. One that
cannot use them, as another Java cannot, starts as it always does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]
CLASSES = ROOT / ".pytest_cache" / f"spark-{pyspark.__version__}.jsa"


def make_classes() -> None:
    """Have `CLASSES`, unless they are there."""
    if CLASSES.exists():
        return
    CLASSES.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CLASSES.parent) as folder:
        made = Path(folder, "made.jsa")
        command = [sys.executable, "-m", "tests.spark.jvm_classes", str(made)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if done.returncode == 0 and made.exists():  # else there are none, and the tests take longer
            made.rename(CLASSES)


def work(file: str) -> None:
    """Use some of everything that jobs use, in a JVM that writes down what it has loaded."""
    from penstock.pipeline import register
    from penstock.pipeline.session import open_session

    keeping = f'-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit="{file}"'
    spark = open_session(settings={"spark.driver.extraJavaOptions": keeping})
    register(spark)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(1000).selectExpr("id", "id % 7 AS key", "cast(id AS STRING) AS text")
        rows.groupBy("key").count().join(rows, "key").write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").where("text > '5'").orderBy("id").toPandas()
    spark.sparkContext.parallelize(range(8), 4).map(lambda one: (one % 2, one)).groupByKey().count()
    end(spark)


def end(spark: pyspark.sql.SparkSession) -> None:
    """End a session and its JVM. Whoever does not wait for that leaves it behind, and cannot know what it has used."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its input
    gateway.proc.wait()


if __name__ == "__main__":
    work(sys.argv[1])
