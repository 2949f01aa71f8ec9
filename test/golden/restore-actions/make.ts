/**
 * `npx node test/golden/restore-actions/make.ts` asks the peer restore-answers, which is Velero's
 * own code, and writes answers.json, which the test compares with.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { PEERS } from '../../support/kopia.ts';
import { CASES } from './cases.ts';

const questions = CASES.map(({ configMaps = [], ...each }) => ({
  ...each,
  configMaps: configMaps.map((config, i) => ({
    metadata: {
      name: `config-${i}`,
      namespace: 'velero',
      labels: { 'velero.io/plugin-config': '', [each.action]: 'RestoreItemAction' },
    },
    ...config,
  })),
}));
const input = questions.map((each) => `${JSON.stringify(each)}\n`).join('');
const { status, stdout, stderr } = spawnSync(`${PEERS}/bin/restore-answers`, { input });
if (status !== 0) throw new Error(`restore-answers failed: ${stderr.toString()}`);
const answers = stdout.toString().trimEnd().split('\n');
const text = answers.map((line) => `  ${line}`).join(',\n');
writeFileSync(new URL('answers.json', import.meta.url), `[\n${text}\n]\n`);
