import sys

from deltalake import DeltaTable, QueryBuilder

windows = DeltaTable(f"{sys.argv[1]}/windows")
question = "SELECT room, count(*) AS found FROM windows GROUP BY room ORDER BY room"
answer = QueryBuilder().register("windows", windows).execute(question).read_all()
count, rooms = sum(answer["found"].to_pylist()), ", ".join(answer["room"].to_pylist())
sys.stdout.write(f"{count} windows of {rooms}\n")
