import { describe, expect, it } from 'vitest';
import { BackupArchive } from '../../../../src/archive/index.ts';
import { CanceledError } from '../../../../src/base/index.ts';
import { ClusterVolumes } from '../../../../src/backup-volumes/index.ts';
import type { KubeClient } from '../../../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../../../src/plugin/index.ts';
import type { VolumesContext } from '../../../../src/server/backups/run/cluster-runner.ts';
import type { VolumeHelper } from '../../../../src/volume-policy/index.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { reasonOf, Rig } from './support/rig.ts';

/** Survives the servers. Every requested snapshot is taken, even if its answer is lost. */
class Provider {
  readonly taken: string[] = [];
  /** The next calls whose answers are lost, because the server ends meanwhile. */
  ends: ((() => void) | undefined)[] = [];

  get snapshotter(): VolumeSnapshotter {
    return {
      volumeIdOf: ({ metadata }: { metadata: { name: string } }) =>
        Promise.resolve(`vol-${metadata.name}`),
      volumeInfo: () => Promise.resolve({ volumeType: 'ssd' }),
      createSnapshot: async (
        volumeId: string,
        _zone: string,
        _tags: object,
        { signal }: { signal: AbortSignal },
      ) => {
        this.taken.push(volumeId);
        const end = this.ends.shift();
        if (!end) return `snap-${this.taken.length}`;
        end();
        await new Promise((resolve) => setImmediate(resolve));
        signal.throwIfAborted();
        throw new Error('the server is still there');
      },
    } as unknown as VolumeSnapshotter;
  }
}

function newWorld(volumes: readonly string[]) {
  const provider = new Provider();
  const bucket = new MemoryBucket();
  const cluster = new FakeCluster().namespaces('app');
  for (const name of volumes) {
    cluster.add('persistentvolumes', {
      metadata: { name, uid: name },
      spec: { hostPath: { path: '/x' }, claimRef: { namespace: 'app', name } },
    });
  }
  const client = { list: () => Promise.resolve([]) } as unknown as KubeClient;
  const helper = {
    snapshotDecision: () => Promise.resolve({ yes: true, because: { by: 'nothing' } }),
    filesDecision: () => Promise.resolve({ yes: false, because: { by: 'nothing' } }),
  } as unknown as VolumeHelper;
  const openVolumes = ({ backup, log, signal, willSnapshot }: VolumesContext) =>
    Promise.resolve(
      new ClusterVolumes({
        client,
        backup,
        helper,
        signal,
        willSnapshot,
        log: log.results,
        hasCsi: true,
        locations: [
          {
            metadata: { name: 'zone-a', uid: 'l', resourceVersion: '1', creationTimestamp: '' },
            spec: { provider: 'example.io/x' },
          },
        ],
        snapshotters: () => provider.snapshotter,
        resourceTimeoutMs: 1000,
        podVolumeTimeoutMs: 1000,
      }),
    );
  const untold: string[] = [];
  const server = (): Rig =>
    new Rig({ cluster, bucket, openVolumes, onUntold: (text) => untold.push(text) });
  const killed = async (): Promise<void> => {
    const rig = server();
    provider.ends.push(() => {
      rig.leaving.abort(new CanceledError('shutdown'));
      rig.abort.abort(new CanceledError('shutdown'));
    });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'CANCELED' });
  };
  const stored = async () => {
    const archive = await new BackupArchive(bucket).open('b1');
    const results = await archive.results();
    return {
      warnings: results.warnings?.cluster ?? [],
      snapshots: await archive.volumeSnapshots(),
    };
  };
  return { provider, bucket, server, killed, stored, untold };
}

const WARNING =
  'nobody knows whether a snapshot was taken of volume vol-pv1 (PersistentVolume pv1) in VolumeSnapshotLocation zone-a: its backup was ended while the provider was asked for it. One that is there has the tags velero.io/backup=b1 and velero.io/pv=pv1, and an id that the backup does not name: look for it at the provider, and delete it there';

describe('a snapshot whose id nobody has noted', () => {
  it('is none where no server is ended', async () => {
    const { server, stored } = newWorld(['pv1', 'pv2']);
    expect(await server().run()).toMatchObject({ phase: 'Finalizing' });
    expect((await stored()).warnings).toEqual([]);
  });

  it('is named by the server that goes on, with its volume and its tags, and once', async () => {
    const { provider, server, killed, stored } = newWorld(['pv1']);
    await killed();
    // Killed after it announced the snapshot, and before the call.
    const idle = server();
    idle.abort.abort(new CanceledError('shutdown'));
    idle.leaving.abort(new CanceledError('shutdown'));
    await reasonOf(idle.run());
    expect(await server().run()).toMatchObject({ phase: 'Finalizing', status: { warnings: 1 } });
    expect(provider.taken).toEqual(['vol-pv1', 'vol-pv1']);
    const { warnings, snapshots } = await stored();
    expect(warnings).toEqual([expect.stringContaining(WARNING)]);
    expect(snapshots.map(({ status }) => status?.providerSnapshotID)).toEqual(['snap-2']);
  });

  it('is none of a volume that was done before the kill', async () => {
    const { provider, server, killed, stored } = newWorld(['pv1', 'pv2', 'pv3']);
    // Two run at once: the third request starts when the first is done.
    provider.ends.push(undefined, undefined);
    await killed();
    expect(provider.taken).toHaveLength(3);
    await server().run();
    const again = provider.taken.slice(3);
    expect(again.length).toBeLessThan(3);
    const { warnings, snapshots } = await stored();
    expect(warnings).toHaveLength(again.length);
    for (const volume of again) expect(warnings.join('\n')).toContain(`of volume ${volume} (`);
    expect(snapshots).toHaveLength(3);
  });

  it('of each kill is named', async () => {
    const { provider, server, killed, stored } = newWorld(['pv1']);
    await killed();
    await killed();
    await server().run();
    expect(provider.taken).toHaveLength(3);
    expect((await stored()).warnings).toHaveLength(2);
  });

  it('is named by the backup that is canceled meanwhile', async () => {
    const { provider, server, stored } = newWorld(['pv1']);
    const rig = server();
    provider.ends.push(() => {
      rig.abort.abort(new CanceledError('user'));
    });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'CANCELED' });
    expect((await stored()).warnings).toEqual([expect.stringContaining(WARNING)]);
  });

  it('is named where the journal is damaged, and nobody goes on', async () => {
    const { provider, bucket, server, killed, untold } = newWorld(['pv1', 'pv2']);
    await killed();
    const key = [...bucket.objects.keys()].sort()[0] ?? '';
    bucket.objects.set(key, Buffer.from('x'));
    expect(await reasonOf(server().run())).toMatchObject({ code: 'DAMAGED_JOURNAL' });
    expect(provider.taken.length).toBeGreaterThan(0);
    expect(untold).toEqual([expect.stringContaining('velero.io/pv=pv')]);
  });

  it('is not asked for where it cannot be noted before', async () => {
    const { provider, bucket, server } = newWorld(['pv1']);
    const put = bucket.put.bind(bucket);
    bucket.put = (key, ...rest) =>
      key.includes('longshore-journal') && bucket.objects.size > 0
        ? Promise.reject(new Error('refused'))
        : put(key, ...rest);
    expect(await reasonOf(server().run())).toMatchObject({ code: 'ARCHIVE_NOT_WRITTEN' });
    expect(provider.taken).toEqual([]);
  });
});
