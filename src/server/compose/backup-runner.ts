import { BackupArchive } from '../../archive/index.ts';
import type { ReadAhead } from '../../backup/index.ts';
import { ClusterVolumes } from '../../backup-volumes/index.ts';
import { type PersistentVolumeClaim, PVS } from '../../kube/index.ts';
import { choicesOf, namespacesOf, readsOf } from '../../plugin/index.ts';
import { ListedVolumes, VolumeHelper } from '../../volume-policy/index.ts';
import type { VolumesContext } from '../backups/run/cluster-runner.ts';
import { ClusterRunner } from '../index.ts';
import type { BackupParts } from './backup-parts.ts';
import { serverClock } from './common.ts';

/** The runner of backups. Waits for the discovery of the cluster's kinds. */
export async function openRunner(parts: BackupParts): Promise<ClusterRunner> {
  const { common, settings, buckets, sessions, operations, directory, policies } = parts;
  const { logger } = common;
  return new ClusterRunner({
    // Only runs use it. The controllers that end a backup must not read a stale, prefetched
    // Backup.
    client: common.reads.client,
    readAhead: readAheadOf(parts),
    discovery: await parts.discovery(),
    buckets,
    sessions,
    operations,
    directory,
    logger,
    clock: serverClock(common.client),
    archiveOf: (bucket) => new BackupArchive(bucket, { logger }),
    openVolumes: (context) => openVolumes(parts, context),
    loadPolicies: (backup) => policies.of(backup),
    logLevel: settings.logLevel,
    logFormat: settings.logFormat,
    workers: settings.workers,
    trustsMustInclude: settings.trustsMustInclude,
    timeoutNsOf: parts.timeoutNsOf,
  });
}

const readAheadOf = ({ common: { reads }, settings }: BackupParts): ReadAhead => ({
  object: (resource, ref) => {
    reads.begin(resource, ref, { isExact: true });
  },
  // The action for PVCs reads the volume in the same way.
  claim: (pvc) => {
    const { volumeName = '' } = (pvc as PersistentVolumeClaim).spec;
    if (settings.hasCsi) reads.begin(PVS, { name: volumeName });
  },
});

async function openVolumes(
  { settings, policies, snapshotLocations }: BackupParts,
  { backup, session, log, signal, willSnapshot, client: patient }: VolumesContext,
): Promise<ClusterVolumes> {
  const volumePolicies = await policies.of(backup);
  const names = backup.spec.volumeSnapshotLocations ?? [];
  const locations = await snapshotLocations(names, signal);
  return new ClusterVolumes({
    client: patient,
    backup,
    signal,
    hasCsi: settings.hasCsi,
    log: log.results,
    tryLog: log.ofTry,
    helper: new VolumeHelper({
      policies: volumePolicies,
      ...choicesOf(backup),
      backupExcludePvc: false,
      volumes: new ListedVolumes(readsOf(patient, { signal }), {
        namespaces: namespacesOf(backup),
      }),
    }),
    locations,
    willSnapshot,
    snapshotters: (provider, config) => session.snapshotter(provider, config),
    resourceTimeoutMs: settings.resourceTimeoutMs,
    podVolumeTimeoutMs: settings.podVolumeTimeoutMs,
  });
}
