/**
 * `npx node test/golden/restore-hooks/make.ts` asks the peer restore-step-answers, which is
 * Velero's own code, and writes answers.json, which the test compares with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { sortedGoJson } from '../../../src/base/index.ts';
import { PEERS } from '../../support/kopia.ts';
import { CASES } from './cases.ts';

const input = CASES.map((each) => `${sortedGoJson({ ...each })}\n`).join('');
const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/restore-step-answers`, { input });
if (status !== 0) throw new Error(`restore-step-answers failed: ${stderr.toString()}`);
const answers = stdout.toString().trimEnd().split('\n');
const text = answers.map((line) => `  ${line}`).join(',\n');
writeFileSync(new URL('answers.json', import.meta.url), `[\n${text}\n]\n`);
