# Apply all lists to the work tree.
set -e
B=.venv/bin

python3 tools/rename/symbols.py tools/rename/message_names.txt
python3 tools/rename/apply.py tools/rename/messages.txt
python3 tools/rename/apply.py tools/rename/packages.txt
if [ -d src/headrace/doors ]; then git rm -rqf src/headrace/doors; rm -rf src/headrace/doors; fi
sed -i 's/"doors"/"protocols"/; s/headrace\.doors\.\*/headrace.protocols.*/; s/The doors do not know/The protocols do not know/' pyproject.toml
git add -A
python3 tools/rename/apply.py tools/rename/test_modules.txt
git add -A
for l in classes engine edges; do python3 tools/rename/symbols.py tools/rename/$l.txt; done
git add -A
python3 tools/rename/apply.py tools/rename/merges.txt
$B/ruff check --fix -q . >/dev/null || true
$B/ruff format -q .
git add -A
