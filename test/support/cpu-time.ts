/**
 * Milliseconds that the cores spend in this process during a task. Unlike the wall clock, it does
 * not run while other programs have the cores.
 */
export async function cpuMsOf(task: () => unknown): Promise<number> {
  const before = process.cpuUsage();
  await task();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}
