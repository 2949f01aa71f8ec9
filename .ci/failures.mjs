// Prints what failed, once more and shortly: the end of a long log is what people read first.
import { readFileSync } from 'node:fs';
import { relative } from 'node:path';

const linesOfMessage = 12;

for (const path of process.argv.slice(2)) {
  let results;
  try {
    results = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    console.log(`NO RESULTS in ${path}: ${error.message}`);
    continue;
  }
  for (const file of results.testResults) {
    const name = relative(process.cwd(), file.name);
    const failed = file.assertionResults.filter((test) => test.status === 'failed');
    // A file that could not be loaded has no tests, only a message.
    if (file.status === 'failed' && failed.length === 0) print(name, file.message);
    for (const test of failed) print(`${name} > ${test.fullName}`, test.failureMessages.join('\n'));
  }
}

function print(title, message = '') {
  console.log(`FAILED: ${title}`);
  for (const line of message.split('\n').slice(0, linesOfMessage)) console.log(`    ${line}`);
}
