import { expect, it } from 'vitest';
import { BackupArchive } from '../../../../src/archive/index.ts';
import { CanceledError } from '../../../../src/base/index.ts';
import type { BackupAction } from '../../../../src/backup/index.ts';
import { ClusterVolumes } from '../../../../src/backup-volumes/index.ts';
import type { KubeClient } from '../../../../src/kube/index.ts';
import type { VolumesContext } from '../../../../src/server/backups/run/cluster-runner.ts';
import type { VolumeHelper } from '../../../../src/volume-policy/index.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { reasonOf, Rig } from './support/rig.ts';

const TIMEOUT = 'velero.io/pod-volume-timeout';

/** Moves a volume. Its DataUpload is deleted before it is polled. */
const moves: BackupAction = {
  name: 'example.io/moves',
  appliesTo: { includedResources: ['persistentvolumeclaims'] },
  execute: ({ metadata: { namespace = '', name } }) =>
    Promise.resolve({
      operationId: `op-${name}`,
      postOperationItems: [
        { group: 'velero.io', resource: 'datauploads', namespace, name: `upload-${name}` },
      ],
    }),
};

/** A backup with problems at its start, in volumes and in operations. Servers share a bucket. */
function newWorld() {
  const bucket = new MemoryBucket();
  const cluster = new FakeCluster().namespaces('a');
  cluster.add('persistentvolumeclaims', { metadata: { name: 'v', namespace: 'a' }, spec: {} });
  const client = {
    list: () => Promise.resolve([]),
    find: () => Promise.resolve(undefined),
  } as unknown as KubeClient;
  const helper = { hasClaim: () => Promise.resolve(true) } as unknown as VolumeHelper;
  const openVolumes = ({ backup, log, signal }: VolumesContext) => {
    const metadata = { ...backup.metadata, annotations: { [TIMEOUT]: 'soon' } };
    return Promise.resolve(
      new ClusterVolumes({
        client,
        signal,
        hasCsi: true,
        log: log.results,
        tryLog: log.ofTry,
        backup: { ...backup, metadata },
        helper,
        locations: [],
        snapshotters: () => {
          throw new Error('there is none');
        },
        resourceTimeoutMs: 1000,
        podVolumeTimeoutMs: 1000,
      }),
    );
  };
  const spec = { includedNamespaces: ['a', 'gone'], itemOperationTimeout: '1ns' };
  const parts = { cluster, actions: [moves], openVolumes, spec };
  const run = () => new Rig({ ...parts, bucket }).run();
  /** Replaces the server before it stores the backup's files. Its journal is complete by then. */
  const replaced = async (): Promise<void> => {
    const rig: Rig = new Rig({
      ...parts,
      bucket: bucketThrough(bucket, (call, key, task) => {
        if (call !== 'put' || !key.endsWith('b1-logs.gz')) return task();
        const reason = new CanceledError('shutdown');
        rig.leaving.abort(reason);
        rig.abort.abort(reason);
        return Promise.reject(reason);
      }),
    });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'CANCELED' });
  };
  const results = async () => (await new BackupArchive(bucket).open('b1')).results();
  return { run, replaced, results };
}

it('what is wrong with a backup as a whole counts once, however many servers make it', async () => {
  const whole = newWorld();
  const outcome = await whole.run();
  expect(outcome.status).toMatchObject({ errors: 2, warnings: 2 });
  const { errors, warnings } = await whole.results();
  expect(errors).toEqual({
    velero: [expect.stringContaining('fail to get the namespace gone')],
    namespaces: { a: [expect.stringContaining('Asynchronous action timed out')] },
  });
  expect(warnings?.velero).toEqual([
    expect.stringContaining('Unable to parse pod volume timeout annotation'),
    expect.stringContaining('Fail to get DataUpload a/upload-v'),
  ]);

  const continued = newWorld();
  await continued.replaced();
  await continued.replaced();
  expect((await continued.run()).status).toEqual(outcome.status);
  expect(await continued.results()).toEqual({ errors, warnings });
});
