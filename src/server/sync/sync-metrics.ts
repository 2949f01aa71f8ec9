import { Gauge, type Registry } from 'prom-client';

export interface SyncedLocation {
  readonly name: string;
  /** Backups that cannot be made known. */
  readonly refused: number;
  /** Backups in the cluster that are not in the bucket. */
  readonly held: number;
}

/** Ours: Velero has no metrics of its sync. */
export function registerSyncMetrics(
  registry: Registry,
  locations: () => Iterable<SyncedLocation>,
): void {
  const gauge = (name: string, help: string, value: (location: SyncedLocation) => number): Gauge =>
    new Gauge({
      ...{ name: `longshore_backup_sync_${name}`, help },
      labelNames: ['backup_location_name'],
      registers: [registry],
      collect() {
        this.reset();
        for (const location of locations()) {
          this.set({ backup_location_name: location.name }, value(location));
        }
      },
    });
  gauge(
    'refused_backups',
    'Backups of a location that cannot be made known in the cluster, as their metadata are damaged',
    ({ refused }) => refused,
  );
  gauge(
    'missing_backups',
    'Backups in the cluster whose files are not in their location',
    ({ held }) => held,
  );
}
