import { afterEach, describe, expect, it } from 'vitest';
import {
  collectItems,
  idOf,
  oldResourceFilter,
  Results,
  scopedResourceFilter,
  Spool,
  usesOldLists,
} from '../../../src/backup/index.ts';
import type { BackupSpec } from '../../../src/kube/index.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import { FakeCluster, named, refusal } from '../support/cluster.ts';

const spools: Spool[] = [];
afterEach(async () => {
  for (const spool of spools.splice(0)) await spool[Symbol.asyncDispose]();
});

interface Run {
  readonly cluster: FakeCluster;
  readonly spec?: BackupSpec;
  readonly includes?: string[];
  readonly excludes?: string[];
  readonly terminating?: string[];
  readonly spoolBytes?: number;
  readonly pageItemsMax?: number;
  readonly pageBytes?: number;
  readonly listsAtOnce?: number;
}

async function collect(run: Run): Promise<{
  ids: string[];
  log: Results;
  spool: Spool;
  items: Awaited<ReturnType<typeof collectItems>>;
}> {
  const { cluster, spec = {} } = run;
  const spool = await Spool.open({ bytesMax: run.spoolBytes ?? 1 << 20 });
  spools.push(spool);
  const log = new Results();
  const discovery = await cluster.discovery();
  const namespaces = cluster.filter(run.includes, run.excludes);
  const resources = usesOldLists(spec)
    ? oldResourceFilter(discovery, spec, namespaces)
    : scopedResourceFilter(discovery, spec, namespaces);
  const items = await collectItems({
    client: cluster,
    discovery,
    spec,
    namespaces,
    resources,
    spool,
    log,
    terminating: new Set(run.terminating),
    listsAtOnce: run.listsAtOnce ?? 4,
    limits: { pageItemsMax: run.pageItemsMax ?? 2, pageBytes: run.pageBytes ?? 1000, retryMs: 1 },
  });
  return { ids: [...items].map((item) => `${item.type} ${idOf(item)}`), log, spool, items };
}

const small = (): FakeCluster =>
  new FakeCluster()
    .namespaces('a', 'b')
    .add('configmaps', 'a/one', 'a/two', 'b/one')
    .add('pods', 'a/web', 'b/db')
    .add('persistentvolumeclaims', 'b/data')
    .add('persistentvolumes', 'pv-1')
    .add('events', 'a/ev')
    .add('events.events.k8s.io', 'a/ev')
    .add('stable.example.com', 'x')
    .add('things.stable.example.com', 'a/thing');

describe('the items of a backup', () => {
  it('come pods first, then claims, volumes, and the rest as the server lists it; events once', async () => {
    expect((await collect({ cluster: small() })).ids).toEqual([
      'pods a/web',
      'pods b/db',
      'persistentvolumeclaims b/data',
      'persistentvolumes pv-1',
      'configmaps a/one',
      'configmaps a/two',
      'configmaps b/one',
      'namespaces a',
      'namespaces b',
      'events a/ev',
      'things.stable.example.com a/thing',
    ]);
  });

  it('are those of the namespaces, and objects without one only where all namespaces are taken', async () => {
    const cluster = small();
    const { ids } = await collect({ cluster, includes: ['a'] });
    expect(ids).toEqual([
      'pods a/web',
      'configmaps a/one',
      'configmaps a/two',
      'namespaces a',
      'events a/ev',
      'things.stable.example.com a/thing',
    ]);
    // A list for each namespace, and no list of all namespaces.
    expect(cluster.asked).toContain('list configmaps a');
    expect(cluster.asked).not.toContain('list configmaps *');
  });

  it('are filtered in memory where a namespace is excluded', async () => {
    const cluster = small();
    const { ids } = await collect({ cluster, excludes: ['b'] });
    expect(ids.filter((id) => / b\b/.test(id))).toEqual([]);
    expect(cluster.asked).toContain('list configmaps *');
  });

  it.each<[BackupSpec, string[] | undefined, string]>([
    [
      { includedResources: ['deploymnets', 'Pod'] },
      undefined,
      '"deploymnets" of includedResources selects nothing: the cluster does not serve such a type',
    ],
    [
      { includedNamespaceScopedResources: ['persistentvolumes'] },
      undefined,
      '"persistentvolumes" of includedNamespaceScopedResources selects nothing: the type is cluster-scoped',
    ],
    [
      {},
      ['a', 'x-*'],
      '"x-*" of includedNamespaces selects nothing: the cluster has no namespace that matches',
    ],
    [
      { labelSelector: { matchLabels: { app: 'typo' } } },
      ['a'],
      'The label selector "app=typo" matches no object of the types and namespaces asked for',
    ],
    [
      { orLabelSelectors: [{ matchLabels: { app: 'web' } }, { matchLabels: { app: 'typo' } }] },
      ['a'],
      'The label selector "app=typo" matches no object of the types and namespaces asked for',
    ],
    [
      { excludedResources: ['sercets'] },
      ['*'],
      '"sercets" of excludedResources excludes nothing: the cluster does not serve such a type',
    ],
    [
      { excludedNamespaceScopedResources: ['persistentvolumes'] },
      ['*'],
      '"persistentvolumes" of excludedNamespaceScopedResources excludes nothing: the type is cluster-scoped',
    ],
    [
      { hooks: { resources: [{ name: 'db', includedNamespaces: ['a', 'aa'] }] } },
      ['*'],
      '"aa" of includedNamespaces of hook "db" selects nothing: the cluster has no such namespace',
    ],
    [
      { hooks: { resources: [{ name: 'db', excludedNamespaces: ['aa'] }] } },
      ['*'],
      '"aa" of excludedNamespaces of hook "db" excludes nothing: the cluster has no such namespace',
    ],
    [
      { hooks: { resources: [{ name: 'db', includedResources: ['pods', 'podz'] }] } },
      ['*'],
      '"podz" of includedResources of hook "db" selects nothing: the cluster does not serve such a type',
    ],
    [
      { hooks: { resources: [{ name: 'db', excludedResources: ['sercets'] }] } },
      ['*'],
      '"sercets" of excludedResources of hook "db" excludes nothing: the cluster does not serve such a type',
    ],
    [
      { hooks: { resources: [{ name: 'db', includedResources: ['configmaps'] }] } },
      ['*'],
      'The resources of hook "db" leave out pods, and hooks run only in pods',
    ],
    [
      {
        hooks: {
          resources: [
            { name: 'db', labelSelector: { matchLabels: { app: 'typo' } } },
            { name: 'web', labelSelector: { matchLabels: { app: 'web' } } },
          ],
        },
      },
      ['*'],
      'The label selector "app=typo" of hook "db" matches no pod of the backup',
    ],
    [
      {
        hooks: {
          resources: [
            {
              name: 'db',
              includedNamespaces: ['b'],
              labelSelector: { matchLabels: { app: 'web' } },
            },
          ],
        },
      },
      ['*'],
      'The label selector "app=web" of hook "db" matches no pod of the backup',
    ],
    [
      { excludedResources: ['pods'], orderedResources: { pods: 'a/web' } },
      ['*'],
      '"pods" of orderedResources orders nothing: the backup leaves this type out',
    ],
    [
      { excludedNamespaces: ['kube-sytem'] },
      ['*'],
      '"kube-sytem" of excludedNamespaces excludes nothing: the cluster has no such namespace',
    ],
  ])('warn once about a name that selects nothing: %j %j', async (spec, includes, warning) => {
    const cluster = small();
    cluster.add('pods', { metadata: { name: 'w', namespace: 'a', labels: { app: 'web' } } });
    const { log } = await collect({ cluster, spec, ...(includes && { includes }) });
    expect(log.lists.warnings.velero).toEqual([` message: /${warning}`]);
  });

  it('warn about nothing that was asked for and is there, or was excluded', async () => {
    const specs: BackupSpec[] = [
      ...[{ includedResources: ['pods', 'Pod', 'things'] }, { includedResources: ['*'] }],
      ...[{ excludedResources: ['pods'] }, { labelSelector: {} }],
      // The cluster serves them, and has none.
      { includedClusterScopedResources: ['priorityclasses'] },
    ];
    for (const spec of specs) {
      const { log } = await collect({ cluster: small(), spec, excludes: ['gone'] });
      expect([spec, log.lists.warnings]).toEqual([spec, {}]);
    }
  });

  it('are without a PVC that is being deleted, which is a warning, as is a namespace', async () => {
    const cluster = small();
    const deletionTimestamp = '2026-11-26T12:00:00Z';
    cluster.add('persistentvolumeclaims', {
      metadata: { name: 'old', namespace: 'a', deletionTimestamp },
    });
    const { log } = await collect({ cluster, includes: ['a'], terminating: ['a', 'b'] });
    expect(log.lists.warnings.namespaces).toEqual({
      a: [
        expect.stringContaining('The namespace a is being deleted') as string,
        expect.stringContaining('neither the PVC nor its data') as string,
      ],
    });
    const all = await collect({ cluster: small(), terminating: ['a'] });
    expect(all.log.warningCount).toBe(0);
  });

  it('may be of a resource with the name of something that every object of JavaScript has', async () => {
    const cluster = small().add('constructor.f1.example.com', 'a/one');
    cluster.groups = {
      ...cluster.groups,
      'f1.example.com': [{ plural: 'constructor', kind: 'Constructor' }],
    };
    const spec = { orderedResources: { configmaps: 'b/one' } };
    expect((await collect({ cluster, spec })).ids).toContain('constructor.f1.example.com a/one');
  });

  it('come in the order that is asked for, and what is not there is a warning', async () => {
    const spec = { orderedResources: { configmaps: 'b/one, a/gone ,a/two' } };
    const { ids, log, items } = await collect({ cluster: small(), spec });
    expect(ids.filter((id) => id.startsWith('configmaps'))).toEqual([
      'configmaps b/one',
      'configmaps a/two',
      'configmaps a/one',
    ]);
    expect([...items].filter(({ isOrdered }) => isOrdered).length).toBe(2);
    expect(log.lists.warnings.velero).toEqual([" message: /Cannot find resource 'a/gone'."]);
  });

  it('wait in the spool as they were listed', async () => {
    const { items, spool } = await collect({ cluster: small() });
    const objects = await Promise.all(
      [...items].map(
        async ({ place }) => place && (JSON.parse(String(await spool.read(place))) as object),
      ),
    );
    expect(objects[0]).toEqual({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { namespace: 'a', name: 'web' },
    });
    expect(objects.length).toBe(11);
  });

  it('that do not fit into the spool are there by name', async () => {
    const { items, spool, ids } = await collect({ cluster: small(), spoolBytes: 200 });
    expect(spool.bytes).toBeLessThanOrEqual(200);
    expect(ids.length).toBe(11);
    expect([...items].some(({ place }) => place === undefined)).toBe(true);
  });
});

describe('label selectors', () => {
  const labelled = (): FakeCluster =>
    new FakeCluster()
      .add('namespaces', named('a', { status: { phase: 'Active' } }))
      .add(
        'namespaces',
        named('b', { status: { phase: 'Active' }, metadata: { labels: { app: 'x' } } }),
      )
      .add(
        'namespaces',
        named('c', { status: { phase: 'Terminating' }, metadata: { labels: { app: 'x' } } }),
      )
      .add('configmaps', named('a/x', { metadata: { labels: { app: 'x', tier: 'y' } } }), 'a/none');

  it('choose objects at the server, and namespaces by their own labels or by what is in them', async () => {
    const spec = { labelSelector: { matchLabels: { app: 'x' } } };
    const cluster = labelled();
    expect((await collect({ cluster, spec })).ids).toEqual([
      'configmaps a/x',
      'namespaces a',
      'namespaces b',
    ]);
    expect(cluster.asked).toContain('list configmaps * app=x');
  });

  it('that are several give an object once that several of them choose', async () => {
    const spec = {
      orLabelSelectors: [{ matchLabels: { app: 'x' } }, { matchLabels: { tier: 'y' } }],
    };
    expect((await collect({ cluster: labelled(), spec })).ids).toContain('configmaps a/x');
    expect((await collect({ cluster: labelled(), spec })).ids.length).toBe(3);
  });

  it('without conditions choose all, which Velero backs up nothing for', async () => {
    const { ids } = await collect({ cluster: labelled(), spec: { labelSelector: {} } });
    expect(ids).toContain('configmaps a/none');
  });
});

describe('a list', () => {
  const many = (): FakeCluster =>
    new FakeCluster()
      .namespaces('a')
      .add('configmaps', ...Array.from({ length: 9 }, (_, n) => `a/m${n}`));
  const maps = (ids: string[]): number => ids.filter((id) => id.startsWith('configmaps')).length;

  it('is begun anew when the server forgets its version, and nothing of it comes twice', async () => {
    const cluster = many();
    let isFirst = true;
    cluster.onList = (type, { continue: from }) => {
      if (type !== 'configmaps' || from !== '4' || !isFirst) return;
      isFirst = false;
      throw refusal('KUBE_GONE', { continue: '4' });
    };
    const { ids, log } = await collect({ cluster });
    expect(new Set(ids).size).toBe(ids.length);
    expect({ maps: maps(ids), errors: log.errorCount }).toEqual({ maps: 9, errors: 0 });
    expect(cluster.asked.filter((text) => text === 'list configmaps *').length).toBeGreaterThan(6);
  });

  it('goes on with the newest version when the server forgets it once more', async () => {
    const cluster = many();
    let times = 0;
    cluster.onList = (type, { continue: from }) => {
      if (type === 'configmaps' && from === '4' && ++times <= 2)
        throw refusal('KUBE_GONE', { continue: '4' });
    };
    expect(maps((await collect({ cluster })).ids)).toBe(9);
    cluster.onList = (type, { continue: from }) => {
      if (type === 'configmaps' && from === '4') throw refusal('KUBE_GONE');
    };
    const { ids, log } = await collect({ cluster });
    expect({ maps: maps(ids), errors: log.lists.errors }).toEqual({
      maps: 0,
      errors: {
        cluster: [
          ' resource: /configmaps message: /Error listing items error: /the server says KUBE_GONE',
        ],
      },
    });
  });

  it('is asked for in smaller pages when a page is too long', async () => {
    const cluster = many();
    cluster.onList = (type, { limit = 0 }) => {
      if (type === 'configmaps' && limit > 1) throw refusal('KUBE_ANSWER_TOO_LONG');
    };
    expect(maps((await collect({ cluster, pageItemsMax: 500 })).ids)).toBe(9);
  });

  it('has pages of a size, not of a number', async () => {
    const cluster = new FakeCluster()
      .namespaces('a')
      .add(
        'configmaps',
        ...Array.from({ length: 70 }, (_, n) =>
          named(`a/m${n}`, { data: { x: 'x'.repeat(1000) } }),
        ),
      );
    const limits: number[] = [];
    cluster.onList = (type, { limit = 0 }) => {
      if (type === 'configmaps') limits.push(limit);
    };
    await collect({ cluster, pageItemsMax: 500, pageBytes: 5000 });
    expect(limits.slice(0, 3)).toEqual([20, 4, 4]);
  });

  it('is tried again in the first namespace only, if the conversion webhook of its type is away', async () => {
    const cluster = new FakeCluster().namespaces('a', 'b', 'c');
    let tries = 0;
    const text = 'conversion webhook for stable.example.com/v1, Kind=Thing failed';
    cluster.onList = (type) => {
      if (type !== 'things.stable.example.com') return;
      tries++;
      throw kubeError('list things', 500, { message: text });
    };
    const { log } = await collect({ cluster, includes: ['a', 'b', 'c'], listsAtOnce: 1 });
    expect([log.errorCount, tries]).toEqual([3, 6]);
  });

  it('is tried again while the server is away, and is an error when it stays away', async () => {
    const cluster = many();
    let times = 0;
    cluster.onList = (type) => {
      if (type === 'configmaps' && ++times <= 2) throw refusal('KUBE_UNAVAILABLE');
    };
    expect(maps((await collect({ cluster })).ids)).toBe(9);
    cluster.onList = (type) => {
      if (type === 'configmaps') throw refusal('KUBE_UNAVAILABLE');
    };
    const { ids, log } = await collect({ cluster });
    expect({ maps: maps(ids), errors: log.errorCount }).toEqual({ maps: 0, errors: 1 });
    expect(ids).toContain('namespaces a');
  });

  it('of a resource that nobody serves any more is a warning, and of one that is served an error', async () => {
    const cluster = small();
    cluster.onList = (type) => {
      if (type !== 'things.stable.example.com') return;
      cluster.groups = Object.fromEntries(
        Object.entries(cluster.groups).filter(([name]) => name !== 'stable.example.com'),
      );
      throw refusal('KUBE_NOT_FOUND');
    };
    const { log } = await collect({ cluster });
    expect(log.lists).toMatchObject({
      warnings: { cluster: [expect.stringContaining('The resource is not served any more')] },
      errors: {},
    });
    cluster.onList = (type) => {
      if (type === 'pods') throw refusal('KUBE_NOT_FOUND');
    };
    expect((await collect({ cluster })).log.errorCount).toBe(1);
  });
});

describe('a list that is not found', () => {
  it('is an error where the resource is served in another version by now', async () => {
    const cluster = small();
    cluster.onList = (type) => {
      if (type !== 'things.stable.example.com') return;
      cluster.versions['stable.example.com'] = 'v2';
      throw refusal('KUBE_NOT_FOUND');
    };
    const { log } = await collect({ cluster });
    expect({ errors: log.errorCount, warnings: log.warningCount }).toEqual({
      errors: 1,
      warnings: 0,
    });
  });

  it('is an error where the server of the group does not answer', async () => {
    const cluster = small();
    cluster.onList = (type) => {
      if (type !== 'things.stable.example.com') return;
      cluster.stale.add('stable.example.com');
      throw refusal('KUBE_NOT_FOUND');
    };
    const { log } = await collect({ cluster });
    expect({ errors: log.errorCount, warnings: log.warningCount }).toEqual({
      errors: 1,
      warnings: 0,
    });
  });
});

describe('an answer of the API server', () => {
  it('is never read further than four pages, so that large objects do not fill the memory', async () => {
    const asked: { limit?: number; bytesMax?: number }[] = [];
    const names = Array.from({ length: 60 }, (_, n) => named(`a/m${n}`));
    const cluster = new FakeCluster().namespaces('a').add('configmaps', ...names);
    cluster.onList = (type, options) => {
      if (type === 'configmaps') asked.push(options);
    };
    const { ids } = await collect({ cluster, pageItemsMax: 500, pageBytes: 1000 });
    expect(ids.filter((id) => id.startsWith('configmaps')).length).toBe(60);
    expect(asked[0]?.limit).toBe(20);
    for (const { limit = 0, bytesMax = Infinity } of asked) {
      if (limit > 1) expect(bytesMax).toBeLessThanOrEqual(4000);
    }
  });
});

describe('objects of namespaces that are left out', () => {
  it('count for the size of a page', async () => {
    const limits: number[] = [];
    const big = { data: { x: 'x'.repeat(400) } };
    const names = Array.from({ length: 60 }, (_, n) => named(`b/m${n}`, big));
    const cluster = new FakeCluster().namespaces('a', 'b').add('configmaps', ...names);
    cluster.onList = (type, { limit = 0 }) => {
      if (type === 'configmaps') limits.push(limit);
    };
    await collect({ cluster, excludes: ['b'], pageItemsMax: 50, pageBytes: 2000 });
    expect(Math.max(...limits.slice(1))).toBeLessThanOrEqual(10);
  });
});

describe('namespaces', () => {
  it('with names of one letter can be left out, and the others are listed', async () => {
    const cluster = small().namespaces('long').add('configmaps', 'long/m');
    const { ids } = await collect({ cluster, excludes: ['?'] });
    expect(ids).toContain('configmaps long/m');
    expect(ids).not.toContain('configmaps a/one');
  });

  it('by an empty name mean nothing that is in one', async () => {
    const cluster = small();
    const { ids } = await collect({ cluster, includes: [''] });
    expect(ids).toEqual([]);
    expect(cluster.asked.filter((each) => each.startsWith('list configmaps'))).toEqual([]);
  });

  it('that are named and not there are errors, and patterns that match none are a warning', async () => {
    const { log } = await collect({ cluster: small(), includes: ['a', 'gone'] });
    expect(log.lists.errors.velero).toEqual([
      ' resource: /namespaces message: /fail to get the namespace gone specified in backup.Spec.IncludedNamespaces',
    ]);
    const none = await collect({ cluster: small(), includes: ['x*'] });
    expect({ ids: none.ids, warnings: none.log.warningCount }).toEqual({ ids: [], warnings: 1 });
  });
});
