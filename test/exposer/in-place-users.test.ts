import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { UnusedVolume } from '../../src/agent/mover/unused-volume.ts';
import { CodedError } from '../../src/base/index.ts';
import { usesClaim } from '../../src/exposer/claim-users.ts';
import { targetProblem } from '../../src/exposer/index.ts';
import {
  type DataDownload,
  inPlaceConfig,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
} from '../../src/kube/index.ts';

const claim = {
  metadata: { namespace: 'shop', name: 'data', uid: 'c' },
  spec: { volumeName: 'pv' },
  status: { phase: 'Bound' },
} as PersistentVolumeClaim;
const download = {
  spec: {
    targetVolume: { namespace: 'shop', pvc: 'data', pv: '' },
    datamover: 'longshore',
    dataMoverConfig: inPlaceConfig({ dryRun: false, keepExtra: false }),
  },
} as DataDownload;
const volume = (spec: object): PersistentVolume =>
  ({ metadata: { name: 'pv' }, spec: { claimRef: { uid: 'c' }, ...spec } }) as never;

it('a volume whose driver forgets it with the second object is refused', () => {
  const modes = { accessModes: ['ReadWriteOnce'] };
  const of = (driver: string): string | undefined =>
    targetProblem(download, claim, volume({ ...modes, csi: { driver, volumeHandle: 'h' } }));
  expect(of('csi.vsphere.vmware.com')).toContain('would forget the volume');
  expect(of('ebs.csi.aws.com')).toBeUndefined();
});

const podOf = (phase: string, state: object): Pod =>
  ({
    metadata: { name: 'db-0' },
    spec: {
      containers: [],
      volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'data' } }],
    },
    status: { phase, containerStatuses: [{ name: 'app', state }] },
  }) as never;

it.each([
  ['Running', { running: {} }, true],
  ['Pending', { waiting: {} }, true],
  ['Failed', { terminated: { exitCode: 1 } }, false],
  ['Succeeded', { terminated: { exitCode: 0 } }, false],
  ['Failed', { running: { startedAt: '2026-01-01T00:00:00Z' } }, true],
])('a pod that is %s with a container %o uses its PVC: %s', (phase, state, uses) => {
  expect(usesClaim(podOf(phase, state), 'data')).toBe(uses);
});

it('a restore is stopped when nothing is known any more of the pods that may use its volume', async () => {
  let isAllowed = true;
  const refused = new CodedError('KUBE_FORBIDDEN', 'pods is forbidden');
  const client = {
    collect: () => (isAllowed ? Promise.resolve([]) : Promise.reject(refused)),
    listPage: () => (isAllowed ? Promise.resolve({ items: [] }) : Promise.reject(refused)),
    watch: async function* () {
      isAllowed = false;
      await Promise.resolve();
      yield* [];
    },
  } as never;
  const claimRef = { namespace: 'shop', name: 'data' };
  const options = { client, claim: claimRef, isTouched: false, timeoutMs: 1000, blindMsMax: 1 };
  await using unused = new UnusedVolume(options);
  await unused.assertUnused('before', new AbortController().signal);
  while (!unused.used.aborted) await sleep(10);
  expect(unused.used.reason).toMatchObject({
    code: 'POD_UNKNOWN',
    message: expect.stringMatching(
      /^cannot tell any more whether a pod uses PVC shop\/data, and the restore was stopped: .*pods is forbidden$/,
    ) as string,
  });
});
