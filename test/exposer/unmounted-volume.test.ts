import { describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import {
  BACKUP_KIND,
  type ExposerOptions,
  PodVolumeExposer,
  RESTORE_KIND,
} from '../../src/exposer/index.ts';
import { DAEMON_SETS, NODES } from '../../src/kube/index.ts';
import { aPodVolumeRestore } from '../support/builders.ts';

const movement = aPodVolumeRestore({
  metadata: { name: 'm', namespace: 'velero', uid: 'm-1' },
  spec: {
    pod: { namespace: 'app', name: 'web', uid: 'w-1' },
    volume: 'v',
    backupStorageLocation: 'default',
    snapshotID: 's',
  },
});
const starting = { state: { waiting: { reason: 'PodInitializing' } } };
const running = { state: { running: {} } };
const ended = { state: { terminated: { exitCode: 0 } } };

/** The client pod's containers, look by look; the last ones stay. */
interface Course {
  readonly kind: 'backup' | 'restore';
  readonly looks: readonly { readonly init?: object; readonly main?: object }[];
  readonly prepareTimeoutMs?: number;
}

/** At which look the hosting pod was made. */
async function startAgain({ kind, looks, prepareTimeoutMs = 60_000 }: Course): Promise<number> {
  let seen = 0;
  let madeAt = 0;
  let made: object | undefined;
  const clientPod = (): object => {
    const { init, main } = looks[Math.min(seen++, looks.length - 1)] ?? {};
    return {
      metadata: { name: 'web', namespace: 'app', uid: 'w-1' },
      spec: {
        nodeName: 'n',
        containers: [],
        initContainers: [{ name: 'restore-wait' }],
        volumes: [{ name: 'v', csi: { driver: 'd' } }],
      },
      status: {
        phase: kind === 'backup' ? 'Running' : 'Pending',
        initContainerStatuses: init ? [{ name: 'restore-wait', ...init }] : [],
        containerStatuses: main ? [{ name: 'app', ...main }] : [],
      },
    };
  };
  const template = {
    containers: [{ name: 'a', image: 'x' }],
    volumes: [{ name: 'host-pods', hostPath: { path: '/var/lib/kubelet/pods' } }],
  };
  const client = {
    find: (resource: unknown, { name }: { name: string }) => {
      if (resource === NODES) return Promise.resolve({ metadata: { name: 'n' } });
      return Promise.resolve(name === 'web' ? clientPod() : made);
    },
    get: (resource: unknown) =>
      Promise.resolve(resource === DAEMON_SETS ? { spec: { template: { spec: template } } } : {}),
    create: (_resource: unknown, pod: { metadata: object }) => {
      madeAt = seen;
      made = { ...pod, metadata: { ...pod.metadata, uid: 'h-1' }, status: { phase: 'Running' } };
      return Promise.resolve(made);
    },
    delete: () => Promise.resolve(true),
    list: () => Promise.resolve([]),
  };
  const options = {
    client,
    logger: silentLogger,
    namespace: 'velero',
    daemonSet: 'node-agent',
    prepareTimeoutMs,
    config: { loadAffinity: [], backupPvc: {}, podResources: {} },
  } as unknown as ExposerOptions;
  const of = kind === 'backup' ? BACKUP_KIND : RESTORE_KIND;
  const exposer = new PodVolumeExposer(options, of as typeof RESTORE_KIND);
  const { signal } = new AbortController();
  await exposer.startAgain(movement, 'n', { signal, operationTimeoutMs: 1000 });
  return madeAt;
}

describe.concurrent('a hosting pod, while the node of the volume comes up again', () => {
  it('is made for a restore when its pod waits again', async () => {
    const looks = [{ init: starting }, {}, { init: running }];
    expect(await startAgain({ kind: 'restore', looks })).toBe(3);
  });

  it('is made for a backup when a container of its pod runs again', async () => {
    const looks = [
      { main: starting },
      { init: ended, main: ended },
      { init: ended, main: running },
    ];
    expect(await startAgain({ kind: 'backup', looks })).toBe(3);
  });

  it.each([
    ['whose init container runs', { init: running, main: starting }],
    [
      'that crashes again and again',
      { main: { state: { waiting: { reason: 'CrashLoopBackOff' } } } },
    ],
    ['of which only the phase is known', {}],
  ])('is made at once for a backup of a pod %s', async (_what, look) => {
    expect(await startAgain({ kind: 'backup', looks: [look] })).toBe(1);
  });

  it.each([
    ['backup', 'PVB: its volume is not mounted: no container of pod app/web runs yet'],
    [
      'restore',
      'PVR: its volume is not mounted: init container restore-wait of pod app/web does not run yet',
    ],
  ] as const)('is not made for a %s whose volume stays away for too long', async (kind, text) => {
    const looks = [{ init: starting, main: starting }];
    await expect(startAgain({ kind, looks, prepareTimeoutMs: 500 })).rejects.toMatchObject({
      code: 'EXPOSE_FAILED',
      message: `error to expose ${text}`,
    });
  });
});
