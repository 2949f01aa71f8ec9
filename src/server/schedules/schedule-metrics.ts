import { Gauge, type Registry } from 'prom-client';

/** Velero's metric of schedules (1.19), by its name: seconds between the next two times of each one that is on. */
export function registerScheduleMetrics(
  registry: Registry,
  intervals: () => Iterable<{ readonly schedule: string; readonly seconds: number }>,
): void {
  new Gauge({
    name: 'velero_schedule_expected_interval_seconds',
    help: 'Expected interval between consecutive scheduled backups, in seconds',
    labelNames: ['schedule'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { schedule, seconds } of intervals()) this.set({ schedule }, seconds);
    },
  });
}
