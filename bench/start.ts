/**
 * `node bench/start.ts ['snapshot list' ...] [--pairs N] [--check]`: measures verbs that do little
 * else than start, in turn with Kopia. The repository has one small snapshot.
 */
import * as fs from 'node:fs';
import { COMPARED_HEAD, comparedRow, inPairs, pairOptions, report, type Row } from './compare.ts';
import { QUICK, Workplace } from './workplace.ts';

/** Without a repository: the answer is in the program. */
const PROGRAM = { cpuSeconds: 0.1 };
const REPOSITORY = { seconds: 1, cpu: 1 };
const VERBS = [
  { name: '--version', ours: ['--version'], kopia: ['--version'], bars: PROGRAM },
  { name: '--help', ours: ['--help'], kopia: ['--help'], bars: PROGRAM },
  {
    name: 'completion',
    ours: ['completion', 'bash'],
    kopia: ['--completion-script-bash'],
    bars: PROGRAM,
  },
  { name: 'snapshot list', bars: REPOSITORY },
  { name: 'repository status', bars: REPOSITORY },
  { name: 'policy list', bars: REPOSITORY },
];

const { pairs, dir, check, wanted } = pairOptions();
const work = new Workplace(dir, { ...QUICK, fewFiles: 1 });
const rows: Row[] = [];
try {
  work.need('few');
  work.newRepository('ours');
  await work.upload('ours', 'few');
  console.log(COMPARED_HEAD);
  for (const { name, ours = name.split(' '), kopia = name.split(' '), bars } of VERBS) {
    if (wanted.length > 0 && !wanted.includes(name)) continue;
    const runs = await inPairs(pairs, (side) =>
      side === 'ours'
        ? work.run(side, ours, { onRepository: bars === REPOSITORY })
        : work.run(side, kopia),
    );
    const row = { name, bars, ...runs };
    rows.push(row);
    console.log(comparedRow(row));
  }
} finally {
  fs.rmSync(dir, { recursive: true, force: true });
}
report(rows, check);
