import { describe, it } from 'vitest';
import { BACKUP_KIND, type ExposerOptions, PodVolumeExposer } from '../../src/exposer/index.ts';
import { silentLogger } from '../../src/base/index.ts';
import type { Pod, PodVolumeBackup } from '../../src/kube/index.ts';

const backup = {
  metadata: { name: 'b', namespace: 'velero', uid: 'b-1' },
  spec: { pod: { namespace: 'app', name: 'web' }, volume: 'v' },
} as unknown as PodVolumeBackup;
const hosting = (phase: string): Pod =>
  ({
    metadata: { name: 'b', namespace: 'velero', uid: 'p-1', ownerReferences: [{ uid: 'b-1' }] },
    spec: { containers: [], volumes: [{ name: 'b-1', hostPath: { path: '/pods/1/v' } }] },
    status: { phase },
  }) as unknown as Pod;

interface Course {
  readonly reason?: string;
  readonly message: string;
  /** At which look the hosting pod runs. */
  readonly runsAt?: number;
  /** The container statuses of the pod that owns the volume. */
  readonly containers?: object;
  /** How often the kubelet tells it. */
  readonly times?: number;
}

/** The hosting pod exists, and is pending at first. Returns the number of reads of the pod. */
const expose = async (course: Course): Promise<number> => {
  const { reason = 'FailedMount', message, runsAt = 4, containers, times = Infinity } = course;
  let looks = 0;
  let told = 0;
  const client = {
    find: (_kind: unknown, { name }: { name: string }) =>
      Promise.resolve(
        name === 'web'
          ? {
              metadata: { name, namespace: 'app', uid: 'w-1' },
              spec: { nodeName: 'node-1', containers: [] },
              status: { phase: 'Running', ...containers },
            }
          : hosting(++looks > runsAt ? 'Running' : 'Pending'),
      ),
    list: () => {
      told = Math.min(told + 1, times);
      return Promise.resolve([{ reason, message, metadata: { resourceVersion: String(told) } }]);
    },
  };
  const options = { client, logger: silentLogger, namespace: 'velero' };
  const exposer = new PodVolumeExposer(options as unknown as ExposerOptions, BACKUP_KIND);
  const { signal } = new AbortController();
  await exposer.expose(backup, 'node-1', { signal, operationTimeoutMs: 1000 });
  return looks;
};

describe.concurrent('what the kubelet says of the volumes of a hosting pod', () => {
  const said = 'hostPath type check failed: /pods/1/v is not a directory';
  it('ends it where the directory is not there', async ({ expect }) => {
    await expect(expose({ message: said })).rejects.toMatchObject({
      code: 'EXPOSE_FAILED',
      message: `error to expose PVB: expected one matching path: /pods/1/v, got 0: the kubelet says: ${said}`,
    });
  });

  it('may pass where it was told once', async ({ expect }) => {
    expect(await expose({ message: said, times: 1 })).toBe(5);
  });

  it('may pass where the node has not mounted the volume yet', async ({ expect }) => {
    const waiting = {
      containerStatuses: [{ state: { waiting: { reason: 'ContainerCreating' } } }],
    };
    expect(await expose({ message: said, containers: waiting })).toBe(5);
  });

  it.each([
    [
      'FailedMount',
      'dial unix /var/lib/kubelet/plugins/csi.sock: connect: no such file or directory',
    ],
    ['Pulling', 'hostPath type check failed'],
  ])('may pass where it is of something else: %s %s', async (reason, message) => {
    await expose({ reason, message });
  });
});
