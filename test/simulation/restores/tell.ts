import { settingsOf, simulateRestore } from './simulation.ts';

/** Shows each step of a seed: `npx node test/simulation/restores/tell.ts 17`. */
const seed = Number(process.argv[2] ?? 1);
const settings = settingsOf(seed);
const { problems } = await simulateRestore(seed, settings, (line) => {
  process.stdout.write(`${line}\n`);
});
process.stdout.write(`${JSON.stringify(settings)}\n`);
for (const problem of problems) process.stdout.write(`${problem}\n`);
