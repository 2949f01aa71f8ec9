import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { Results } from '../../../src/backup/index.ts';
import type { KubeObject, RestoreSpec } from '../../../src/kube/index.ts';
import {
  isPodRestored,
  openRestoreActions,
  parsePriorities,
  type RestoreRunOptions,
  runRestore,
} from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const signal = new AbortController().signal;
const UID = 'batch.kubernetes.io/controller-uid';
const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

const labels = { [UID]: 'old-job', 'controller-uid': 'old-job', 'job-name': 'j' };
const job = (more: object = {}, metadata: object = {}): StoredItem =>
  stored('jobs.batch', 'app/j', {
    metadata: { uid: 'old-job', ...metadata },
    spec: {
      selector: { matchLabels: { [UID]: 'old-job' } },
      template: { metadata: { labels: { ...labels, app: 'x' } }, spec: { containers: [] } },
    },
    ...more,
  });
const podOf = (kind: string, apiVersion: string, metadata: object = {}): StoredItem =>
  stored('pods', 'app/p', {
    metadata: {
      labels,
      ...metadata,
      ownerReferences: [{ apiVersion, kind, name: 'j', uid: 'old-job', controller: true }],
    },
    spec: { containers: [], volumes: [{ name: 'data', emptyDir: {} }] },
    status: { phase: 'Running' },
  });
const pod = podOf('Job', 'batch/v1');

interface Run {
  readonly items?: readonly StoredItem[];
  readonly there?: readonly StoredItem[];
  readonly spec?: RestoreSpec;
  /** Volumes of the pod that the backup has the files of. */
  readonly files?: readonly string[];
  readonly more?: Partial<RestoreRunOptions>;
  readonly onCreate?: (cluster: RestoreCluster, type: string) => void;
}

async function run({ items = [job(), pod], there = [], spec, files = [], more, onCreate }: Run) {
  const cluster = new RestoreCluster();
  if (onCreate) {
    cluster.onCreate = (type) => {
      onCreate(cluster, type);
    };
  }
  if (there.length > 0) cluster.namespaces('app');
  for (const { type, object } of there) cluster.add(type, object);
  const contents = await contentsOf(items);
  opened.push(contents);
  const log = new Results(undefined, undefined, 'sentence');
  const { resourceList } = await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf(spec),
    items: contents,
    actions: openRestoreActions({ find: cluster.find, list: () => [] } as never, 'velero'),
    sink: { put: () => Promise.resolve() },
    podVolumes: {
      begin: () => Promise.resolve({ operations: [], errors: [] }),
      filesOf: () => files,
    },
    log,
    pollMs: 1,
    terminatingMs: 20,
    resourceTimeoutMs: 20,
    patienceMs: 50,
    signal,
    ...more,
  });
  const made = (type: string, id: string): KubeObject | undefined => {
    const found = cluster.get(type, id);
    return found?.metadata.labels?.['velero.io/restore-name'] === undefined ? undefined : found;
  };
  const listed = [...resourceList].flatMap(([kind, names]) =>
    [...names].map((each) => `${kind} ${each}`),
  );
  return { cluster, log, made, listed, contents };
}

describe('a pod of a Job', () => {
  it('is left out when the restore makes the Job, which makes a pod itself', async () => {
    const { made, log, listed } = await run({});
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(made('jobs.batch', 'app/j')).toMatchObject({
      spec: { selector: { matchLabels: {} }, template: { metadata: { labels: { app: 'x' } } } },
    });
    expect(listed).toContain('v1/Pod app/p(skipped)');
    expect(log.lists.warnings).toEqual({});
  });

  it('is left out when a CronJob made the Job', async () => {
    const owner = { apiVersion: 'batch/v1', kind: 'CronJob', name: 'c', uid: 'u' };
    const ownerReferences = [{ ...owner, controller: true }];
    const { made } = await run({ items: [job({}, { ownerReferences }), pod] });
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(made('jobs.batch', 'app/j')).toBeDefined();
  });

  it('is left out in the namespace that the restore maps to', async () => {
    const spec = { namespaceMapping: { app: 'copy' } };
    const { made } = await run({ spec });
    expect(made('pods', 'copy/p')).toBeUndefined();
    expect(made('jobs.batch', 'copy/j')).toBeDefined();
  });

  it('is restored with its files, and the restored Job takes it over', async () => {
    const { made, log } = await run({ files: ['data'] });
    const restored = made('pods', 'app/p');
    expect(restored?.metadata.labels).toMatchObject({ [UID]: 'old-job' });
    expect(made('jobs.batch', 'app/j')).toMatchObject({
      spec: {
        manualSelector: true,
        selector: { matchLabels: { [UID]: 'old-job' } },
        template: { metadata: { labels: { ...labels, app: 'x' } } },
      },
    });
    expect(log.lists.warnings).toEqual({});
  });

  const hook =
    'Internal error occurred: failed calling webhook "v.example.com": failed to call webhook: no endpoints';

  it('comes before its Job, although a webhook refuses it at first', async () => {
    let refusals = 0;
    const { made, log, cluster } = await run({
      files: ['data'],
      onCreate: (_, type) => {
        if (type === 'pods' && refusals++ === 0) throw refused('KUBE_UNAVAILABLE', hook, 500);
      },
    });
    const created = cluster.calls.filter((call) => call.startsWith('create '));
    expect(created.slice(-2)).toEqual(['create pods app/p', 'create jobs.batch app/j']);
    expect(made('pods', 'app/p')).toBeDefined();
    expect(made('jobs.batch', 'app/j')).toMatchObject({ spec: { manualSelector: true } });
    expect(log.lists.errors).toEqual({});
  });

  it('is left out if the cluster gets its Job while a webhook refuses it', async () => {
    const { made, log } = await run({
      files: ['data'],
      onCreate: (cluster, type) => {
        if (type !== 'pods') return;
        if (!cluster.get('jobs.batch', 'app/j')) cluster.add('jobs.batch', job().object);
        throw refused('KUBE_UNAVAILABLE', hook, 500);
      },
    });
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(JSON.stringify(log.lists.warnings)).toContain('a second time');
  });

  it.each<[string, object]>([
    ['it has other labels', { labels: {} }],
    ['it ends', { deletionTimestamp: '2026-11-26T11:00:00Z' }],
    ['another object controls it', { ownerReferences: [{ kind: 'X', controller: true }] }],
  ])('does not change the selector of its Job if %s', async (_why, more) => {
    const other = stored('pods', 'app/other', { metadata: { labels, ...more } });
    const { made } = await run({ there: [other] });
    expect(made('jobs.batch', 'app/j')).toMatchObject({ spec: { selector: { matchLabels: {} } } });
  });

  it('is left out when the cluster has the Job, and a warning names its files', async () => {
    const without = await run({ there: [job()] });
    expect(without.made('pods', 'app/p')).toBeUndefined();
    const { made, log } = await run({ there: [job()], items: [pod], files: ['data', 'logs'] });
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(log.lists.warnings).toMatchObject({
      namespaces: {
        app: [
          'not restored, because the cluster has Job app/j, and the pod would do its work a second time. The files of the volumes data, logs are not restored. To get them, delete the Job and restore again',
        ],
      },
    });
  });

  it('is looked at as any other when the cluster has both', async () => {
    const { log, cluster } = await run({ there: [job(), pod], files: ['data'] });
    expect(cluster.calls).toContain('create pods app/p');
    expect(JSON.stringify(log.lists.warnings)).not.toContain('a second time');
  });

  it('is left out when its Job had ended, and a warning names its files', async () => {
    const over = job({ status: { conditions: [{ type: 'SuccessCriteriaMet', status: 'True' }] } });
    const { made, log } = await run({ items: [over, pod], files: ['data'] });
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(made('jobs.batch', 'app/j')).toBeUndefined();
    expect(log.lists.warnings).toMatchObject({
      namespaces: {
        app: [
          'not restored, because Job app/j had ended when the backup was made. The files of the volume data are not restored. To get them, run longshore browse',
        ],
      },
    });
  });

  it('is left out when Jobs come before pods', async () => {
    const priorities = parsePriorities('jobs.batch,pods');
    const { made, log } = await run({ files: ['data'], more: { priorities } });
    expect(made('pods', 'app/p')).toBeUndefined();
    expect(JSON.stringify(log.lists.warnings)).toContain('the cluster has Job app/j');
  });

  it.each<[string, Run]>([
    ['the backup has no Job', { items: [pod] }],
    ['the spec excludes Jobs', { spec: { excludedResources: ['jobs'] } }],
    ['labels select the pod alone', { spec: { labelSelector: { matchLabels: labels } } }],
    ['another kind controls it', { items: [job(), podOf('Job', 'example.com/v1')] }],
    ['a ReplicaSet controls it', { items: [job(), podOf('ReplicaSet', 'apps/v1')] }],
  ])('is restored by itself when %s', async (_when, parts) => {
    const { made } = await run(parts);
    expect(made('pods', 'app/p')).toBeDefined();
  });

  it('is no pod that the files of a shared claim are restored through', async () => {
    const ask = async (there: readonly StoredItem[], items: readonly StoredItem[]) => {
      const contents = await contentsOf(items);
      opened.push(contents);
      const cluster = new RestoreCluster();
      for (const { type, object } of there) cluster.add(type, object);
      return isPodRestored(
        { namespace: 'app', name: 'p' },
        {
          client: cluster as never,
          resources: await cluster.resources(),
          signal,
          restore: restoreOf(),
          items: contents,
        },
      );
    };
    const over = job({ status: { completionTime: '2025-01-01T00:00:00Z' } });
    expect(await ask([], [job(), pod])).toBe(true);
    expect(await ask([job()], [job(), pod])).toBe(false);
    expect(await ask([], [over, pod])).toBe(false);
  });
});
