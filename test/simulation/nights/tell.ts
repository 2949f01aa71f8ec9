import { simulateNights } from './simulation.ts';

/**
 * One seed, line by line: `npx node test/simulation/nights/tell.ts 17`; `17 calm`: without any
 * trouble.
 */
const { problems, counts } = await simulateNights(
  Number(process.argv[2] ?? 1),
  { isCalm: process.argv[3] === 'calm' },
  (line) => {
    process.stdout.write(`${line}\n`);
  },
);
process.stdout.write(`${JSON.stringify([...counts])}\n`);
for (const problem of problems) process.stdout.write(`${problem}\n`);
