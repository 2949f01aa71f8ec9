import { Gauge, type Registry } from 'prom-client';

/** Velero's metric of locations, by its name. One that was never validated has none, as with Velero. */
export function registerLocationMetrics(
  registry: Registry,
  locations: () => Iterable<{ readonly name: string; readonly isAvailable: boolean }>,
): void {
  new Gauge({
    name: 'velero_backup_location_status_gauge',
    help: 'Whether a backup storage location is available (1) or not (0)',
    labelNames: ['backup_location_name'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { name, isAvailable } of locations()) {
        this.set({ backup_location_name: name }, isAvailable ? 1 : 0);
      }
    },
  });
}
