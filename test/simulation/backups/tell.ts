import { simulateBackup } from './simulation.ts';

/**
 * Shows each step of a seed: `npx node test/simulation/backups/tell.ts 17`. With `17 deleted`, the
 * Backup is deleted meanwhile.
 */
const { problems } = await simulateBackup(
  Number(process.argv[2] ?? 1),
  { isDeleted: process.argv[3] === 'deleted' },
  (line) => {
    process.stdout.write(`${line}\n`);
  },
);
for (const problem of problems) process.stdout.write(`${problem}\n`);
