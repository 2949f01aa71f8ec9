import { simulateNights } from './simulation.ts';

/** Shows each step of a seed: `npx node test/simulation/nights/tell.ts 17 [calm]`. */
const { problems, counts } = await simulateNights(
  Number(process.argv[2] ?? 1),
  { isCalm: process.argv[3] === 'calm' },
  (line) => {
    process.stdout.write(`${line}\n`);
  },
);
process.stdout.write(`${JSON.stringify([...counts])}\n`);
for (const problem of problems) process.stdout.write(`${problem}\n`);
