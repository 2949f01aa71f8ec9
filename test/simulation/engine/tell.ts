import { type Kind, simulate } from './simulation.ts';

/**
 * Reports seeds: `node test/simulation/engine/tell.ts FIRST [COUNT [KIND]]`. For one seed it prints
 * each step. For several seeds it prints failures, counts and speed.
 */
const [first = 0, count = 1] = process.argv.slice(2, 4).map(Number);
const kind = process.argv[4] as Kind | undefined;
const start = process.hrtime.bigint();
const startCpu = process.cpuUsage();
const totals = new Map<string, number>();
const trace = (line: string): void => {
  console.log(line);
};
for (let seed = first; seed < first + count; seed++) {
  const { problems, counts } = await simulate(seed, { kind, ...(count === 1 && { trace }) });
  for (const [event, times] of counts) totals.set(event, (totals.get(event) ?? 0) + times);
  for (const problem of problems) console.log(`seed ${seed}: ${problem}`);
}
const seconds = Number(process.hrtime.bigint() - start) / 1e9;
const { user, system } = process.cpuUsage(startCpu);
for (const [event, times] of [...totals].sort()) console.log(`${event}: ${times}`);
const rate = (count / ((user + system) / 1e6)).toFixed(1);
console.log(`${count} seeds in ${seconds.toFixed(1)} s, ${rate} per second of CPU`);
