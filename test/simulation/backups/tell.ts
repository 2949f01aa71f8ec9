import { simulateBackup } from './simulation.ts';

/**
 * One seed, line by line: `npx node test/simulation/backups/tell.ts 17`; `17 deleted`: of a Backup
 * that is deleted meanwhile.
 */
const { problems } = await simulateBackup(
  Number(process.argv[2] ?? 1),
  { isDeleted: process.argv[3] === 'deleted' },
  (line) => {
    process.stdout.write(`${line}\n`);
  },
);
for (const problem of problems) process.stdout.write(`${problem}\n`);
