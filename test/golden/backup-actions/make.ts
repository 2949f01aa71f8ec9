/**
 * `npx node test/golden/backup-actions/make.ts` asks the peer backup-answers, which is Velero's own
 * code, and writes answers.json, which the tests compare with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { PEERS } from '../../support/kopia.ts';
import { backupFor, CASES } from './cases.ts';

const input = CASES.map((each) => `${JSON.stringify({ ...each, backup: backupFor(each) })}\n`);
const options = { input: input.join(''), maxBuffer: 1 << 26 };
const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/backup-answers`, options);
if (status !== 0) throw new Error(`backup-answers failed: ${stderr.toString()}`);
const answers = stdout.toString().trimEnd().split('\n');
const text = answers.map((line) => `  ${line}`).join(',\n');
writeFileSync(new URL('answers.json', import.meta.url), `[\n${text}\n]\n`);
