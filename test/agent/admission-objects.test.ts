import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { secondVolume } from '../../src/exposer/second-volume.ts';
import {
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  type DataDownload,
  EVENTS,
  type KubeClient,
  type KubeObject,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type PersistentVolume,
  type Resource,
  SECRETS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { AGENT, MOVER, PolicedCluster } from '../support/policed-cluster.ts';
import { hasRealApi } from '../support/real-api.ts';

const UID = '01234567-89ab-cdef-0123-456789abcdef';
const API = '/api/v1';
const ROOT = new URL('../../', import.meta.url).pathname;
const SNAPSHOTS = '/apis/snapshot.storage.k8s.io/v1';
const OWNER = { apiVersion: 'velero.io/v2alpha1', kind: 'DataUpload', name: 'x', uid: UID };
const CLAIM_SPEC = {
  accessModes: ['ReadWriteOnce'],
  resources: { requests: { storage: '1Gi' } },
};
const VOLUME_SPEC = {
  capacity: { storage: '1Gi' },
  accessModes: ['ReadWriteOnce'],
  persistentVolumeReclaimPolicy: 'Retain',
  storageClassName: 'fast',
};
const CSI = { csi: { driver: 'dir.csi.longshore.dev', volumeHandle: 'v-1' } };

describe.skipIf(!hasRealApi())('the admission policies, on a real API server', () => {
  let cluster: PolicedCluster;
  let admin: KubeClient;
  let agent: KubeClient;

  beforeAll(async () => {
    cluster = await PolicedCluster.start(31_100);
    admin = cluster.api.client;
    agent = await cluster.clientOf(AGENT);
    await makeObjects();
  }, 120_000);
  afterAll(async () => {
    await (cluster as PolicedCluster | undefined)?.[Symbol.asyncDispose]();
  });

  const make = <T extends KubeObject>(resource: Resource<T>, object: object): Promise<T> =>
    admin.create(resource, object as never);

  /** Objects of a tenant and of the agent. */
  async function makeObjects(): Promise<void> {
    for (const [name, namespace] of [
      ['tenant', 'app'],
      ['own', 'velero'],
      ['handed', 'app'],
    ]) {
      const claimRef = {
        apiVersion: 'v1',
        kind: 'PersistentVolumeClaim',
        name,
        namespace,
        uid: UID,
      };
      const annotations = name === 'handed' ? { 'longshore.io/handed-over': UID } : {};
      const source = { csi: { ...CSI.csi, volumeHandle: name } };
      const spec = { ...VOLUME_SPEC, ...source, claimRef };
      await make(PVS, { metadata: { name, annotations, labels: { a: 'b' } }, spec });
      const contentOf = { name, namespace, uid: UID, kind: 'VolumeSnapshot' };
      await make(VOLUME_SNAPSHOT_CONTENTS, {
        metadata: { name },
        spec: {
          driver: 'd',
          deletionPolicy: 'Delete',
          source: { snapshotHandle: `s-${name}` },
          volumeSnapshotRef: { ...contentOf, apiVersion: 'snapshot.storage.k8s.io/v1' },
        },
      });
    }
    await make(PVCS, { metadata: { name: 'waits', namespace: 'app' }, spec: CLAIM_SPEC });
    await make(PVCS, { metadata: { name: 'minio', namespace: 'velero' }, spec: CLAIM_SPEC });
    const owned = { name: 'x', namespace: 'velero', ownerReferences: [OWNER] };
    await make(PVCS, { metadata: owned, spec: CLAIM_SPEC });
    const source = { persistentVolumeClaimName: 'waits' };
    const labels = { 'velero.io/backup-name': 'b' };
    await make(VOLUME_SNAPSHOTS, { metadata: { name: 'users', namespace: 'app' }, spec: { source } }); // prettier-ignore
    await make(VOLUME_SNAPSHOTS, { metadata: { name: 'backups', namespace: 'app', labels }, spec: { source } }); // prettier-ignore
    await make(CONFIG_MAPS, { metadata: { name: 'settings', namespace: 'velero' }, data: {} });
    const spec = { containers: [{ name: 'a', image: 'b' }], serviceAccountName: MOVER };
    for (const name of ['r-1', 'r-2']) {
      const metadata = { name, namespace: 'velero', annotations: { 'longshore.io/mover': 'm' } };
      await make(PODS, { metadata, spec });
      await make(DATA_DOWNLOADS, {
        metadata,
        spec: {
          snapshotID: 'a',
          sourceNamespace: 'app',
          backupStorageLocation: 'default',
          operationTimeout: '1m',
          targetVolume: { namespace: 'app', pvc: 'p', pv: '' },
        },
      });
      await make(POD_VOLUME_RESTORES, {
        metadata,
        spec: {
          snapshotID: 'a',
          sourceNamespace: 'app',
          backupStorageLocation: 'default',
          pod: { name: 'p', namespace: 'app' },
          volume: 'v',
          repoIdentifier: '',
        },
      });
    }
  }

  const post = (path: string, body: object): Promise<string> =>
    cluster.answer(agent, 'POST', path, body);
  const patch = (path: string, body: object, client = agent): Promise<string> =>
    cluster.answer(client, 'PATCH', path, body);
  const remove = (path: string): Promise<string> => cluster.answer(agent, 'DELETE', path);

  describe('of volumes', () => {
    const download = { metadata: { name: 'x', namespace: 'velero', uid: UID } } as DataDownload;
    const second = (source: object, changes: { metadata?: object; spec?: object } = {}): object => {
      const of = { metadata: { name: 'v' }, spec: { ...VOLUME_SPEC, ...source } };
      const claim = { namespace: 'velero', name: 'x-in-place' };
      const made = secondVolume(download, of as unknown as PersistentVolume, claim);
      return {
        apiVersion: 'v1',
        kind: 'PersistentVolume',
        metadata: { ...made.metadata, ...changes.metadata },
        spec: { ...made.spec, ...changes.spec },
      };
    };
    const nodeAffinity = {
      required: {
        nodeSelectorTerms: [
          { matchExpressions: [{ key: 'kubernetes.io/hostname', operator: 'In', values: ['n'] }] },
        ],
      },
    };
    const local = (path: string, key = 'hostPath'): object => ({ [key]: { path }, nodeAffinity });

    it.each([
      ['a driver', CSI],
      ['a file server', { nfs: { server: 's', path: '/a' } }],
      ["Rancher's local-path", local('/opt/local-path-provisioner/pvc-1_app_data')],
      ['k3s', local('/var/lib/rancher/k3s/storage/pvc-1_app_data', 'local')],
    ])('admit the second object of a volume of %s', async (_, source) => {
      expect(await post(`${API}/persistentvolumes`, second(source))).toBe('admitted');
    });

    it.each([
      ['the root of a node', second(local('/')), /in-place-host-paths/],
      ['the root of a node as a local volume', second(local('/', 'local')), /in-place-host-paths/],
      ['all local volumes of a node', second(local('/opt/local-path-provisioner')), /in-place-/],
      ['a link in a local volume', second(local('/opt/local-path-provisioner/a/b')), /in-place-/],
      ['a directory of any node', second({ hostPath: { path: '/opt/local-path-provisioner/a' } }), /nodeAffinity/],
      ['another name', second(CSI, { metadata: { name: 'a' } }), /second object/],
      ['a policy by which the data go', second(CSI, { spec: { persistentVolumeReclaimPolicy: 'Delete' } }), /second object/],
      ['a claim of a tenant', second(CSI, { spec: { claimRef: { namespace: 'app', name: 'x-in-place' } } }), /second object/],
      ['a provisioner that deletes the data', second(CSI, { metadata: { annotations: { 'pv.kubernetes.io/provisioned-by': 'd' } } }), /second object/],
    ] as const)('refuse a volume with %s', async (_, volume, words) => {
      expect(await post(`${API}/persistentvolumes`, volume)).toMatch(words);
    }); // prettier-ignore

    it('admit a directory of nodes that the DaemonSet names', async () => {
      const volume = second(local('/srv/volumes/a', 'local'));
      await cluster.annotate({ 'longshore.io/in-place-host-paths': '/srv/volumes, /mnt' });
      await expect
        .poll(() => post(`${API}/persistentvolumes`, volume), { interval: 100 })
        .toBe('admitted');
      expect(await post(`${API}/persistentvolumes`, second(local('/etc/a')))).toMatch(/in-place-/);
    });

    const claim = (metadata: object, spec: object = {}): object => ({
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name: 'y', ownerReferences: [{ ...OWNER, name: 'y' }], ...metadata },
      spec: { ...CLAIM_SPEC, ...spec },
    });
    const snapshot = { apiGroup: 'snapshot.storage.k8s.io', kind: 'VolumeSnapshot' };
    it.each([
      ['no owner', claim({ ownerReferences: [] }), /is owned by/],
      ['another name than its owner', claim({ name: 'z' }), /is owned by/],
      ['the snapshot of another operation', claim({}, { dataSource: { ...snapshot, name: 'z' } }), /snapshot of its own name/],
      ['the bytes of another claim', claim({}, { dataSource: { kind: 'PersistentVolumeClaim', name: 'minio' } }), /snapshot of its own name/],
      ['a volume of somebody else', claim({}, { volumeName: 'tenant' }), /names no volume/],
      ['a volume by its labels', claim({}, { selector: { matchLabels: { a: 'b' } } }), /snapshot of its own name/],
    ])('refuse a claim with %s', async (_, body, words) => {
      expect(await post(`${API}/namespaces/velero/persistentvolumeclaims`, body)).toMatch(words);
    }); // prettier-ignore

    it('admit claims of operations', async () => {
      const path = `${API}/namespaces/velero/persistentvolumeclaims`;
      const inPlace = { name: 'y-in-place' };
      for (const body of [
        claim({}, { dataSource: { ...snapshot, name: 'y' } }),
        claim({ name: 'y-cache' }),
        claim(inPlace, { storageClassName: '', volumeName: 'longshore-in-place-1' }),
      ]) {
        expect(await post(path, body)).toBe('admitted');
      }
      expect(await remove(`${path}/x`)).toBe('admitted');
      expect(await remove(`${path}/minio`)).toMatch(/made for an operation/);
    });

    it('let the agent give a waiting claim its volume, and nothing else', async () => {
      const path = `${API}/namespaces/app/persistentvolumeclaims/waits`;
      const annotations = { 'pv.kubernetes.io/bind-completed': null };
      const bound = { metadata: { annotations }, spec: { volumeName: 'own' } };
      expect(await patch(path, bound)).toBe('admitted');
      for (const body of [
        { metadata: { annotations: { a: 'b' } } },
        { spec: { resources: { requests: { storage: '2Gi' } } } },
      ]) {
        expect(await patch(path, body)).toMatch(/gives a claim|Forbidden|forbidden/);
      }
      expect(await patch(path, { metadata: { labels: { a: 'b' } } })).toMatch(/no labels/);
      expect(await patch(path, { metadata: { finalizers: [] } })).toMatch(/finalizers/);
    });

    it('let the agent change its own volumes, and not those of tenants', async () => {
      const at = (name: string): string => `${API}/persistentvolumes/${name}`;
      const policy = (text: string): object => ({ spec: { persistentVolumeReclaimPolicy: text } });
      const claimRef = { namespace: 'app', name: 'waits', uid: null };
      const mark = { metadata: { annotations: { 'longshore.io/handed-over': UID } } };
      const unmark = { metadata: { annotations: { 'longshore.io/handed-over': null } } };
      const admitted: [string, object][] = [
        ['own', policy('Delete')],
        ['own', { ...mark, spec: { claimRef } }],
        ['handed', { ...unmark, ...policy('Delete') }],
      ];
      for (const [name, body] of admitted) expect(await patch(at(name), body)).toBe('admitted');
      const refused: [string, object][] = [
        ['tenant', policy('Delete')],
        ['tenant', { spec: { claimRef: { namespace: 'velero', name: 'x', uid: null } } }],
        ['tenant', mark],
        ['handed', { spec: { claimRef } }],
        ['own', { spec: { mountOptions: ['suid'] } }],
        ['own', { spec: { storageClassName: 'slow' } }],
        ['own', { metadata: { labels: { a: 'c' } } }],
        ['own', { metadata: { annotations: { 'pv.kubernetes.io/provisioned-by': 'd' } } }],
      ];
      for (const [name, body] of refused) {
        expect(await patch(at(name), body), JSON.stringify(body)).toMatch(/the agent changes/);
      }
      expect(await remove(at('own'))).toBe('admitted');
      expect(await remove(at('tenant'))).toMatch(/no volumes but those/);
    });

    it('keep the second object of a volume', async () => {
      const made = (await admin.raw({
        method: 'POST',
        path: `${API}/persistentvolumes`,
        body: second(CSI),
      })) as PersistentVolume;
      const path = `${API}/persistentvolumes/${made.metadata.name}`;
      for (const spec of [
        { persistentVolumeReclaimPolicy: 'Delete' },
        { claimRef: { namespace: 'app', name: 'waits' } },
      ]) {
        expect(await patch(path, { spec })).toMatch(/is always kept/);
      }
      expect(await remove(path)).toBe('admitted');
    });
  });

  describe('of snapshots', () => {
    const content = (ref: object, more: object = {}): object => ({
      apiVersion: 'snapshot.storage.k8s.io/v1',
      kind: 'VolumeSnapshotContent',
      metadata: { name: 'y', annotations: { 'longshore.io/owner-uid': UID } },
      spec: {
        driver: 'd',
        deletionPolicy: 'Delete',
        source: { snapshotHandle: 's' },
        ...more,
        volumeSnapshotRef: { name: 'y', namespace: 'velero', ...ref },
      },
    });
    it('let the agent make its own, and none for tenants', async () => {
      const path = `${SNAPSHOTS}/volumesnapshotcontents`;
      expect(await post(path, content({}))).toBe('admitted');
      expect(await post(path, content({ namespace: 'app' }))).toMatch(/in its own namespace/);
      expect(await post(path, content({ name: 'other' }))).toMatch(/of its own name/);
      const volume = { source: { volumeHandle: 'v-1' } };
      expect(await post(path, content({}, volume))).toMatch(/of its own name/);
      const own = `${SNAPSHOTS}/namespaces/velero/volumesnapshots`;
      const body = (source: object): object => ({
        apiVersion: 'snapshot.storage.k8s.io/v1',
        kind: 'VolumeSnapshot',
        metadata: { name: 'y' },
        spec: { source },
      });
      expect(await post(own, body({ volumeSnapshotContentName: 'y' }))).toBe('admitted');
      const ofClaim = body({ persistentVolumeClaimName: 'minio' });
      expect(await post(own, ofClaim)).toMatch(/content of its own name/);
    });

    it('let the agent retain the contents of tenants, and nothing else', async () => {
      const at = (name: string): string => `${SNAPSHOTS}/volumesnapshotcontents/${name}`;
      expect(await patch(at('tenant'), { spec: { deletionPolicy: 'Retain' } })).toBe('admitted');
      const noted = { metadata: { annotations: { a: 'b' } } };
      expect(await patch(at('own'), noted)).toBe('admitted');
      for (const body of [noted, { spec: { volumeSnapshotRef: { name: 'backups' } } }]) {
        expect(await patch(at('tenant'), body)).toMatch(/sets the policy of a content/);
      }
      expect(await patch(at('tenant'), { metadata: { labels: { a: 'b' } } })).toMatch(/no labels/);
      expect(await remove(at('own'))).toBe('admitted');
      expect(await remove(at('tenant'))).toMatch(/whose snapshot would go/);
      const status = (handle: string): object => ({ status: { snapshotHandle: handle } });
      expect(await patch(`${at('own')}/status`, status('s-own'))).toBe('admitted');
      expect(await patch(`${at('own')}/status`, status('s-tenant'))).toMatch(/made for/);
      expect(await patch(`${at('tenant')}/status`, status('s-tenant'))).toMatch(/own namespace/);
    });

    it('let the agent delete those of backups, and none that a user has made', async () => {
      const path = `${SNAPSHOTS}/namespaces/app/volumesnapshots`;
      expect(await remove(`${path}/backups`)).toBe('admitted');
      expect(await remove(`${path}/users`)).toMatch(/no snapshots but those/);
    });
  });

  describe('of operations', () => {
    const at = '/apis/velero.io/v2alpha1/namespaces/velero/datadownloads';
    const restores = '/apis/velero.io/v1/namespaces/velero/podvolumerestores';

    it('let the agent write what became of them, and not what was ordered', async () => {
      const found = await admin.get(DATA_DOWNLOADS, { namespace: 'velero', name: 'r-1' });
      const put = (spec: object, metadata: object = {}): Promise<string> =>
        cluster.answer(agent, 'PUT', `${at}/r-1`, {
          ...found,
          apiVersion: 'velero.io/v2alpha1',
          kind: 'DataDownload',
          metadata: { ...found.metadata, ...metadata },
          spec: { ...found.spec, ...spec },
          status: { phase: 'Accepted' },
        });
      expect(await put({})).toBe('admitted');
      expect(await put({ cancel: true }, { finalizers: ['velero.io/a'] })).toBe('admitted');
      const targetVolume = { ...found.spec.targetVolume, namespace: 'other' };
      expect(await put({ targetVolume })).toMatch(/changes no orders/);
      expect(await put({ snapshotID: 'b' })).toMatch(/changes no orders/);
      const labels = { 'velero.io/restore-name': 'r' };
      expect(await put({}, { labels })).toMatch(/no labels/);
      const elsewhere = at.replace('velero/datadownloads', 'app/datadownloads');
      expect(await patch(`${elsewhere}/r-1`, {})).toMatch(/cannot patch/);
    });

    it('let the agent write what deletes a snapshot, and no settings', async () => {
      const path = `${API}/namespaces/velero/configmaps`;
      const labels = { 'velero.io/data-upload-snapshot-info': 'true' };
      const body = (metadata: object): object => ({
        apiVersion: 'v1',
        kind: 'ConfigMap',
        metadata,
        data: { a: 'b' },
      });
      expect(await post(path, body({ name: 'x-info', labels }))).toBe('admitted');
      const plugin = { ...labels, 'velero.io/plugin-config': '' };
      expect(await post(path, body({ name: 'x-info', labels: plugin }))).toMatch(/tells of/);
      expect(await post(path, body({ name: 'y' }))).toMatch(/tells of/);
      expect(await patch(`${path}/settings`, { data: { a: 'b' } })).toMatch(
        /that the agent changes/,
      );
      const disguised = { metadata: { labels }, data: { a: 'b' } };
      expect(await patch(`${path}/settings`, disguised)).toMatch(/that the agent changes/);
    });

    describe('with the component driver-secrets', () => {
      const secrets = `${API}/namespaces/velero/secrets`;
      const copied = { 'longshore.io/copied-from': 'app' };
      const secret = (metadata: object, more: object = {}): object => ({
        apiVersion: 'v1',
        kind: 'Secret',
        metadata,
        data: { token: 'b25l' },
        ...more,
      });
      beforeAll(async () => {
        expect(await post(secrets, secret({ name: 'kms-token' }))).toMatch(/cannot create/);
        const rights = join(ROOT, 'manifests/driver-secrets/rbac.yaml');
        await cluster.api.kubectl('-n', 'velero', 'apply', '-f', rights);
        await cluster.annotate({ 'longshore.io/driver-secrets': 'kms-token, kms-settings' });
        await make(SECRETS, { metadata: { name: 'velero-repo-credentials', namespace: 'velero' } });
        for (const [name, namespace] of [
          ['kms-token', 'app'],
          ['other', 'app'],
        ]) {
          await make(SECRETS, { metadata: { name, namespace } });
        }
        const annotations = copied;
        const metadata = { name: 'kms-token', namespace: 'velero', annotations };
        await make(SECRETS, { metadata, data: { token: 'b25l' } });
        await make(CONFIG_MAPS, { metadata: { name: 'kms-settings', namespace: 'velero' } });
        const body = { metadata: { ownerReferences: [OWNER] } };
        await vi.waitFor(
          async () => expect(await patch(`${secrets}/kms-token`, body)).toBe('admitted'),
          { timeout: 30_000, interval: 200 },
        );
      });

      it('let the agent make copies, and no other Secret', async () => {
        const named = { name: 'kms-settings', annotations: copied };
        expect(await post(secrets, secret(named))).toBe('admitted');
        expect(await post(secrets, secret({ ...named, name: 'any' }))).toMatch(/is a copy that/);
        expect(await post(secrets, secret({ name: 'kms-settings' }))).toMatch(/is a copy that/);
        const labels = { 'velero.io/plugin-config': '' };
        expect(await post(secrets, secret({ ...named, labels }))).toMatch(/no labels/);
        // Kubernetes would write a token of the server's account into it.
        const account = { 'kubernetes.io/service-account.name': 'longshore-server' };
        const token = { ...named, annotations: { ...copied, ...account } };
        const type = 'kubernetes.io/service-account-token';
        expect(await post(secrets, secret(token, { type }))).toMatch(/is a copy that/);
        expect(await post(secrets, secret(token))).toMatch(/is a copy that/);
      });

      it('let it change the owners of a copy only', async () => {
        const path = `${secrets}/kms-token`;
        expect(await patch(path, { data: { token: 'dHdv' } })).toMatch(/nothing else of it/);
        expect(await patch(path, { metadata: { labels: { a: 'b' } } })).toMatch(/nothing else/);
        expect(await patch(path, { metadata: { annotations: { a: 'b' } } })).toMatch(/nothing/);
        const settings = `${API}/namespaces/velero/configmaps/kms-settings`;
        expect(await patch(settings, { data: { a: 'b' } })).toMatch(/that the agent changes/);
        expect(await remove(settings)).toMatch(/deletes no Secrets and ConfigMaps but copies/);
        expect(await remove(path)).toBe('admitted');
        expect(await remove(`${secrets}/velero-repo-credentials`)).toMatch(/cannot delete/);
      });

      it('let it read the named Secrets, in any namespace', async () => {
        const ref = { namespace: 'app', name: 'kms-token' };
        expect(await agent.get(SECRETS, ref)).toMatchObject({ metadata: ref });
        for (const other of [
          { namespace: 'app', name: 'other' },
          { namespace: 'velero', name: 'velero-repo-credentials' },
        ]) {
          await expect(agent.get(SECRETS, other)).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
        }
      });
    });

    it.each([
      ['DataDownload', at, 'longshore.io/in-place-report'],
      ['PodVolumeRestore', restores, 'longshore.io/restored'],
    ])('bind a data mover to its own %s', async (_, path, key) => {
      const note = { metadata: { annotations: { [key]: '{}' } } };
      const mover = await cluster.clientOf(MOVER, 'r-1');
      expect(await patch(`${path}/r-1`, note, mover)).toBe('admitted');
      expect(await patch(`${path}/r-2`, note, mover)).toMatch(/no operation but its own/);
      const unbound = await cluster.clientOf(MOVER);
      expect(await patch(`${path}/r-1`, note, unbound)).toMatch(/belongs to its pod/);
      for (const body of [
        { metadata: { annotations: { 'longshore.io/mover': 'other' } } },
        { metadata: { annotations: { 'longshore.io/mover': null } } },
        { metadata: { labels: { a: 'b' } } },
        { metadata: { finalizers: ['velero.io/a'] } },
        { spec: { snapshotID: 'b' } },
        { status: { phase: 'Completed' } },
      ]) {
        const said = await patch(`${path}/r-1`, body, mover);
        expect(said, JSON.stringify(body)).toMatch(/changes nothing else/);
      }
    });

    it('let a data mover tell of its own pod only', async () => {
      const path = `${API}/namespaces/velero/events`;
      const mover = await cluster.clientOf(MOVER, 'r-1');
      const body = (name: string): object => ({
        apiVersion: 'v1',
        kind: 'Event',
        metadata: { name: `${name}.1` },
        reason: 'R',
        involvedObject: { apiVersion: 'v1', kind: 'Pod', namespace: 'velero', name },
      });
      expect(await cluster.answer(mover, 'POST', path, body('r-1'))).toBe('admitted');
      expect(await cluster.answer(mover, 'POST', path, body('r-2'))).toMatch(/no pod but its own/);
      const { uid } = (await admin.get(PODS, { namespace: 'velero', name: 'r-1' })).metadata;
      const saidOf = (pod: string): Promise<string> => {
        const annotations = { 'longshore.io/mover-pod': pod };
        const event = { ...body('r-1'), metadata: { name: 'r-1.1', annotations } };
        return cluster.answer(mover, 'POST', path, event);
      };
      expect(await saidOf(uid)).toBe('admitted');
      expect(await saidOf(UID)).toMatch(/no pod but its own/);
      const others = { ...body('r-2'), metadata: { name: 'r-2.1', namespace: 'velero' } };
      await admin.create(EVENTS, others as never);
      for (const change of [{ count: 2 }, { involvedObject: { name: 'r-1' } }]) {
        expect(await patch(`${path}/r-2.1`, change, mover)).toMatch(/no pod but its own/);
      }
    });
  });
});
