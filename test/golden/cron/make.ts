/**
 * `npx node test/golden/cron/make.ts` asks the peer cron-answers, which is the cron library of
 * Velero's server, and writes answers.json, which the test compares with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { PEERS } from '../../support/kopia.ts';
import { CASES } from './cases.ts';

const input = CASES.map((each) => `${JSON.stringify(each)}\n`).join('');
const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/cron-answers`, { input, timeout: 60_000 });
if (status !== 0) throw new Error(`cron-answers failed: ${stderr.toString()}`);
const answers = stdout.toString().trimEnd().split('\n');
const text = answers.map((line) => `  ${line}`).join(',\n');
writeFileSync(new URL('answers.json', import.meta.url), `[\n${text}\n]\n`);
