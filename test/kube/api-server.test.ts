import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { ApiServer } from '../../src/dev/index.ts';
import {
  Cache,
  CONFIG_MAPS,
  type ConfigMap,
  connectToCluster,
  DATA_UPLOADS,
  type DataUpload,
  type KubeClient,
  NAMESPACES,
  type NewObject,
  PODS,
  VOLUME_SNAPSHOTS,
  waitFor,
  waitGone,
} from '../../src/kube/index.ts';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { hasRealApi, startRealApi } from '../support/real-api.ts';

interface Server extends AsyncDisposable {
  readonly kubeconfig: string;
}

async function startEmbedded(): Promise<Server> {
  const server = await ApiServer.start();
  const kubeconfig = join(await fs.mkdtemp(join(tmpdir(), 'longshore-api-')), 'kubeconfig');
  await fs.writeFile(kubeconfig, server.kubeconfig);
  return { kubeconfig, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

const SERVERS = [
  ['the embedded API server', startEmbedded, true],
  ['a real API server', () => startRealApi(21_500), hasRealApi()],
] as const;

/**
 * The API behaviour that agents, exposers and movers need. The embedded server must have all of it.
 */
for (const [name, start, isThere] of SERVERS)
  describe.skipIf(!isThere)(name, () => {
    let server: Server;
    let client: KubeClient;
    const namespace = 'contract';
    beforeAll(async () => {
      server = await start();
      client = connectToCluster({ kubeconfig: server.kubeconfig, userAgent: 'contract/1' });
      await client.create(NAMESPACES, { metadata: { name: namespace } });
    });
    afterAll(async () => {
      client.close();
      await server[Symbol.asyncDispose]();
    });

    const map = (name: string, more: object = {}): NewObject<ConfigMap> => ({
      metadata: { name, namespace, ...more },
      data: { key: 'value' },
    });
    const upload = (name: string, more: object = {}): NewObject<DataUpload> => ({
      metadata: { name, namespace, ...more },
      spec: {
        snapshotType: 'CSI',
        sourcePVC: 'data',
        sourceNamespace: 'app',
        backupStorageLocation: 'default',
        operationTimeout: '10m0s',
      },
    });
    const codeOf = (task: Promise<unknown>): Promise<unknown> =>
      task.then(
        () => 'none',
        (error: unknown) => (error as { code?: string }).code,
      );

    it('creates with names of its own making, and refuses a second of the same name', async () => {
      const a = await client.create(CONFIG_MAPS, {
        metadata: { generateName: 'made-', namespace },
      });
      expect(a.metadata.name).toMatch(/^made-[a-z0-9]{5}$/);
      expect(a.metadata).toMatchObject({
        uid: expect.any(String) as string,
        resourceVersion: expect.any(String) as string,
      });
      await client.create(CONFIG_MAPS, map('once'));
      expect(await codeOf(client.create(CONFIG_MAPS, map('once')))).toBe('KUBE_ALREADY_EXISTS');
    });

    it('says that there is none', async () => {
      expect(await codeOf(client.get(CONFIG_MAPS, { namespace, name: 'none' }))).toBe(
        'KUBE_NOT_FOUND',
      );
      expect(await client.find(CONFIG_MAPS, { namespace, name: 'none' })).toBeUndefined();
      expect(await client.delete(CONFIG_MAPS, { namespace, name: 'none' })).toBe(false);
    });

    it('lets one of two writers win', async () => {
      const before = await client.create(DATA_UPLOADS, upload('claimed'));
      const claim = (node: string): Promise<string> =>
        client
          .replace(DATA_UPLOADS, { ...before, status: { phase: 'Accepted', acceptedByNode: node } })
          .then(
            () => node,
            () => '',
          );
      const winners = (await Promise.all(['a', 'b', 'c', 'd'].map(claim))).filter(
        (node) => node !== '',
      );
      expect(winners).toHaveLength(1);
      const after = await client.get(DATA_UPLOADS, { namespace, name: 'claimed' });
      expect(after.status?.acceptedByNode).toBe(winners[0]);
      expect(await codeOf(client.replace(DATA_UPLOADS, before))).toBe('KUBE_CONFLICT');
      // Custom resources are never replaced blindly.
      const blind = { ...after, metadata: { ...after.metadata, resourceVersion: '' } };
      expect(await codeOf(client.replace(DATA_UPLOADS, blind))).toBe('KUBE_INVALID');
    });

    it('counts generations by what is outside metadata, and changes nothing for nothing', async () => {
      const before = await client.create(DATA_UPLOADS, upload('generation'));
      const labelled = await client.patch(DATA_UPLOADS, before.metadata, {
        metadata: { labels: { a: 'b' } },
      });
      expect(labelled.metadata.generation).toBe(1);
      const again = await client.patch(DATA_UPLOADS, before.metadata, {
        metadata: { labels: { a: 'b' } },
      });
      expect(again.metadata.resourceVersion).toBe(labelled.metadata.resourceVersion);
      const changed = await client.patch(DATA_UPLOADS, before.metadata, {
        status: { phase: 'Accepted' },
      });
      expect(changed.metadata.generation).toBe(2);
    });

    it("has no status subresource for Velero's kinds, and keeps Kubernetes' own apart", async () => {
      const { metadata } = await client.create(DATA_UPLOADS, upload('no-status'));
      const patch = { status: { phase: 'Accepted' } };
      expect(
        await codeOf(client.patch(DATA_UPLOADS, metadata, patch, { subresource: 'status' })),
      ).toBe('KUBE_NOT_FOUND');
      const snapshot = await client.create(VOLUME_SNAPSHOTS, {
        metadata: { name: 's', namespace },
        spec: { source: { persistentVolumeClaimName: 'data' } },
        status: { readyToUse: true },
      });
      expect(snapshot.status).toBeUndefined();
      const unchanged = await client.patch(VOLUME_SNAPSHOTS, snapshot.metadata, {
        status: { readyToUse: true },
      });
      expect(unchanged.status).toBeUndefined();
      const told = await client.patch(
        VOLUME_SNAPSHOTS,
        snapshot.metadata,
        { status: { readyToUse: true } },
        { subresource: 'status' },
      );
      expect(told.status?.readyToUse).toBe(true);
      await client.delete(VOLUME_SNAPSHOTS, snapshot.metadata);
    });

    it('refuses what the schema does not allow', async () => {
      const bad = {
        ...upload('bad'),
        status: { phase: 'Nonsense' },
      } as unknown as NewObject<DataUpload>;
      expect(await codeOf(client.create(DATA_UPLOADS, bad))).toBe('KUBE_INVALID');
      const missing = { metadata: { name: 'bad', namespace }, spec: { snapshotType: 'CSI' } };
      expect(
        await codeOf(client.create(DATA_UPLOADS, missing as unknown as NewObject<DataUpload>)),
      ).toBe('KUBE_INVALID');
    });

    it('patches by merging, and null removes', async () => {
      await client.create(CONFIG_MAPS, map('patched', { annotations: { keep: '1', drop: '2' } }));
      const ref = { namespace, name: 'patched' };
      const patch = { metadata: { annotations: { drop: null, add: '3' } }, data: { more: 'x' } };
      const { metadata, data } = await client.patch(CONFIG_MAPS, ref, patch);
      expect(metadata.annotations).toEqual({ keep: '1', add: '3' });
      expect(data).toEqual({ key: 'value', more: 'x' });
    });

    it('selects by labels and fields', async () => {
      await client.create(CONFIG_MAPS, map('red', { labels: { color: 'red', size: 'l' } }));
      await client.create(CONFIG_MAPS, map('blue', { labels: { color: 'blue' } }));
      const names = async (selector: object): Promise<string[]> =>
        (await client.list(CONFIG_MAPS, { namespace, ...selector }))
          .map(({ metadata }) => metadata.name)
          .sort();
      expect(await names({ labelSelector: 'color' })).toEqual(['blue', 'red']);
      expect(await names({ labelSelector: 'color=red' })).toEqual(['red']);
      expect(await names({ labelSelector: 'color!=red,color' })).toEqual(['blue']);
      expect(await names({ labelSelector: 'color in (red, green),!none' })).toEqual(['red']);
      expect(await names({ fieldSelector: 'metadata.name=blue' })).toEqual(['blue']);
    });

    it('refuses a selector that it cannot read', async () => {
      for (const labelSelector of ['color in', 'color=red=blue', '-color', 'color in (red']) {
        const list = client.list(CONFIG_MAPS, { namespace, labelSelector });
        expect(await codeOf(list)).toBe('KUBE_REFUSED');
      }
    });

    it('holds what has a finalizer until it has none', async () => {
      const { metadata } = await client.create(
        DATA_UPLOADS,
        upload('held', { finalizers: ['test.io/hold'] }),
      );
      await client.delete(DATA_UPLOADS, metadata);
      const marked = await client.get(DATA_UPLOADS, metadata);
      expect(marked.metadata.deletionTimestamp).toBeTruthy();
      const free = { ...marked, metadata: { ...marked.metadata, finalizers: [] } };
      await client.replace(DATA_UPLOADS, free);
      expect(await client.find(DATA_UPLOADS, metadata)).toBeUndefined();
    });

    it('deletes only the object of the UID that is given', async () => {
      const { metadata } = await client.create(CONFIG_MAPS, map('this-one'));
      expect(await client.delete(CONFIG_MAPS, metadata, { uid: 'another' })).toBe(false);
      expect(await client.find(CONFIG_MAPS, metadata)).toBeDefined();
      expect(await client.delete(CONFIG_MAPS, metadata, { uid: metadata.uid })).toBe(true);
    });

    it('collects what its owner leaves behind', async () => {
      const owner = await client.create(CONFIG_MAPS, map('owner'));
      const { uid } = owner.metadata;
      const reference = { apiVersion: 'v1', kind: 'ConfigMap', name: 'owner', uid };
      await client.create(CONFIG_MAPS, map('owned', { ownerReferences: [reference] }));
      await client.delete(CONFIG_MAPS, owner.metadata);
      await waitGone(client, CONFIG_MAPS, { namespace, name: 'owned' }, { timeoutMs: 30_000 });
    });

    it('tells watchers of what comes, changes, goes, and of what no longer fits', async () => {
      const seen: string[] = [];
      const cache = new Cache({
        client,
        logger: silentLogger,
        resource: CONFIG_MAPS,
        scope: { namespace, labelSelector: 'watched=yes' },
      });
      cache.onChange((after, before) => {
        const kind = !before ? 'added' : !after ? 'removed' : 'changed';
        seen.push(`${kind} ${(after ?? before)?.metadata.name ?? ''}`);
      });
      const abort = new AbortController();
      await client.create(CONFIG_MAPS, map('first', { labels: { watched: 'yes' } }));
      const running = cache.run(abort.signal);
      await cache.synced;
      await sleep(200);
      await client.create(CONFIG_MAPS, map('second', { labels: { watched: 'yes' } }));
      await client.patch(CONFIG_MAPS, { namespace, name: 'first' }, { data: { key: 'new' } });
      await client.patch(
        CONFIG_MAPS,
        { namespace, name: 'second' },
        { metadata: { labels: { watched: 'no' } } },
      );
      await client.delete(CONFIG_MAPS, { namespace, name: 'first' });
      for (let i = 0; i < 600 && seen.length < 5; i++) await sleep(50);
      expect(seen).toEqual([
        'added first',
        'added second',
        'changed first',
        'removed second',
        'removed first',
      ]);
      abort.abort();
      await running;
    });

    it('goes on with a watch from the version that it is given', async () => {
      const { resourceVersion } = await client.listPage(CONFIG_MAPS, { namespace });
      await client.create(CONFIG_MAPS, map('after-version'));
      const events = client.watch(CONFIG_MAPS, {
        namespace,
        resourceVersion,
        signal: AbortSignal.timeout(5000),
      });
      for await (const { object } of events) {
        expect(object.metadata.name).toBe('after-version');
        break;
      }
    });

    it('waits for what is wanted of an object, and no longer than it shall', async () => {
      const ref = { namespace, name: 'awaited' };
      const wait = waitFor(client, CONFIG_MAPS, ref, (now) => now?.data?.state, {
        timeoutMs: 10_000,
      });
      await client.create(CONFIG_MAPS, map('awaited'));
      await client.patch(CONFIG_MAPS, ref, { data: { state: 'ready' } });
      expect(await wait).toBe('ready');
      const never = waitFor(client, CONFIG_MAPS, ref, () => undefined, { timeoutMs: 300 });
      expect(await codeOf(never)).toBe('WAIT_TIMEOUT');
    });

    it('binds a pod to a node', async () => {
      const spec = { containers: [{ name: 'c', image: 'x' }], terminationGracePeriodSeconds: 0 };
      const { metadata } = await client.create(PODS, {
        metadata: { name: 'unbound', namespace },
        spec,
      });
      await client.raw({
        method: 'POST',
        path: `/api/v1/namespaces/${namespace}/pods/unbound/binding`,
        body: {
          apiVersion: 'v1',
          kind: 'Binding',
          metadata: { name: 'unbound' },
          target: { kind: 'Node', name: 'n1' },
        },
      });
      expect((await client.get(PODS, metadata)).spec.nodeName).toBe('n1');
      await client.delete(PODS, metadata, { gracePeriodSeconds: 0 });
    });
  });
