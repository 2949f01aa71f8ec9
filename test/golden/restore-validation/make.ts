/**
 * `npx node test/golden/restore-validation/make.ts` asks the peer validation-answers, which is
 * Velero's own code, and writes answers.json, which the test compares with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { PEERS } from '../../support/kopia.ts';
import { CASES, objectsOf, restoreOf } from './cases.ts';

const input = CASES.map(
  (each) => `${JSON.stringify({ restore: restoreOf(each), objects: objectsOf(each) })}\n`,
);
const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/validation-answers`, {
  input: input.join(''),
});
if (status !== 0) throw new Error(`validation-answers failed: ${stderr.toString()}`);
const answers = stdout.toString().trimEnd().split('\n');
const text = answers.map((line) => `  ${line}`).join(',\n');
writeFileSync(new URL('answers.json', import.meta.url), `[\n${text}\n]\n`);
