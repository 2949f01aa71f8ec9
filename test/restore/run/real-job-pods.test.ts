import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Results } from '../../../src/backup/index.ts';
import {
  Discovery,
  JOBS,
  type KubeObject,
  NAMESPACES,
  type ObjectRef,
  type Pod,
  PODS,
} from '../../../src/kube/index.ts';
import { openRestoreActions, runRestore } from '../../../src/restore/index.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';
import { contentsOf } from '../support/backup.ts';
import { restoreOf } from '../support/restore.ts';

const { signal } = new AbortController();
const LIMIT_MS = 60_000;
const soon = { timeout: LIMIT_MS, interval: 500 };
/** The Job controller makes a missing pod within a second. */
const QUIET_MS = 5000;

interface Job extends KubeObject {
  readonly status?: { readonly active?: number; readonly succeeded?: number };
}

describe.skipIf(!hasRealApi())('a restored Job and the Job controller of Kubernetes', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(31_500);
  }, 120_000);
  afterAll(async () => {
    await (api as RealApi | undefined)?.[Symbol.asyncDispose]();
  }, LIMIT_MS);

  const podsIn = (namespace: string): Promise<Pod[]> =>
    api.client.list(PODS, { namespace, signal });

  /** The Job and its pod as a backup has them. The namespace is gone afterwards. */
  async function backedUp(ref: ObjectRef & { namespace: string }, completions: number) {
    const { namespace, name } = ref;
    await api.client.create(NAMESPACES, { metadata: { name: namespace } }, { signal });
    const container = { name: 'work', image: 'example.com/work:1' };
    await api.client.create(
      JOBS,
      {
        metadata: ref,
        spec: {
          completions,
          template: {
            spec: {
              containers: [container],
              restartPolicy: 'Never',
              volumes: [{ name: 'data', emptyDir: {} }],
            },
          },
        },
      } as never,
      { signal },
    );
    await expect.poll(async () => (await podsIn(namespace)).length, soon).toBe(1);
    const job = await api.client.get(JOBS, { namespace, name }, { signal });
    const pods = await podsIn(namespace);
    await api.kubectl('delete', 'job', '-n', namespace, name, '--wait=false');
    await expect.poll(async () => (await podsIn(namespace)).length, soon).toBe(0);
    const item = (type: string, kind: string, apiVersion: string) => (object: KubeObject) => ({
      type,
      object: { ...object, apiVersion, kind },
    });
    return [item('jobs.batch', 'Job', 'batch/v1')(job), ...pods.map(item('pods', 'Pod', 'v1'))];
  }

  async function restored(items: Awaited<ReturnType<typeof backedUp>>, files: readonly string[]) {
    await using contents = await contentsOf(items);
    const log = new Results(undefined, undefined, 'sentence');
    await runRestore({
      client: api.client,
      discovery: await Discovery.open(api.client, { signal }),
      restore: restoreOf({}),
      items: contents,
      log,
      signal,
      actions: openRestoreActions(api.client, 'velero'),
      sink: { put: () => Promise.resolve() },
      podVolumes: {
        begin: () => Promise.resolve({ operations: [], errors: [] }),
        filesOf: () => files,
      },
    });
    return log.lists;
  }

  const end = async ({ metadata: { namespace = '', name } }: Pod): Promise<void> => {
    const patch = JSON.stringify({ status: { phase: 'Succeeded' } });
    const place = ['-n', namespace, name, '--subresource=status', '--type=merge'];
    await api.kubectl('patch', 'pod', ...place, '-p', patch);
  };

  it.each([
    { namespace: 'with-files', files: ['data'], completions: 1 },
    { namespace: 'without-files', files: [], completions: 1 },
    { namespace: 'twice', files: ['data'], completions: 2 },
  ])(
    'do the work once: $namespace',
    { timeout: 3 * LIMIT_MS },
    async ({ namespace, files, completions }) => {
      const ref = { namespace, name: 'work' };
      const items = await backedUp(ref, completions);
      const old = items[1]?.object.metadata.name;
      expect(await restored(items, files)).toEqual({ errors: {}, warnings: {} });
      const jobNow = async (): Promise<Job> => await api.client.get(JOBS, ref, { signal });
      await expect.poll(async () => (await jobNow()).status?.active, soon).toBe(1);
      await new Promise((resume) => setTimeout(resume, QUIET_MS));
      const pods = await podsIn(namespace);
      expect(pods).toHaveLength(1);
      const [pod] = pods as [Pod];
      expect(pod.metadata.name === old).toBe(files.length > 0);
      const { uid } = (await jobNow()).metadata;
      expect(pod.metadata.ownerReferences).toMatchObject([{ kind: 'Job', uid, controller: true }]);
      await end(pod);
      await expect.poll(async () => (await jobNow()).status?.succeeded, soon).toBe(1);
      await new Promise((resume) => setTimeout(resume, QUIET_MS));
      expect(await podsIn(namespace)).toHaveLength(completions);
      // Deleting the Job deletes all its pods.
      await api.kubectl('delete', 'job', '-n', namespace, 'work', '--wait=false');
      await expect.poll(async () => (await podsIn(namespace)).length, soon).toBe(0);
    },
  );
});
