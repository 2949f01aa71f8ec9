/**
 * `npx node test/golden/patches/make.ts` asks the peer restore-step-answers, which is made of the
 * Go libraries themselves, and writes answers.json and merge-keys.json, which the tests compare
 * with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { sortedGoJson } from '../../../src/base/index.ts';
import { PEERS } from '../../support/kopia.ts';
import { CASES } from './cases.ts';

function ask(args: string[], input: string): string {
  const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/restore-step-answers`, args, { input });
  if (status !== 0) throw new Error(`restore-step-answers failed: ${stderr.toString()}`);
  return stdout.toString().trimEnd();
}

const write = (name: string, text: string): void => {
  writeFileSync(new URL(name, import.meta.url), text);
};
const answers = ask([], CASES.map((each) => `${sortedGoJson(each)}\n`).join('')).split('\n');
write('answers.json', `[\n${answers.map((line) => `  ${line}`).join(',\n')}\n]\n`);
write('merge-keys.json', `${sortedGoJson(JSON.parse(ask(['table'], '')))}\n`);
