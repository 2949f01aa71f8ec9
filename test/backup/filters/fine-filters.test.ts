import { describe, expect, it } from 'vitest';
import {
  collectItems,
  type FineFilter,
  FineFilters,
  type FinePolicies,
  Results,
  scopedResourceFilter,
  Spool,
} from '../../../src/backup/index.ts';
import { FakeCluster, named } from '../support/cluster.ts';

const filter = (kinds: string[], more: Partial<FineFilter> = {}): FineFilter => ({
  kinds,
  names: [],
  excludedNames: [],
  orLabelSelectors: [],
  ...more,
});

async function filtersOf(policies: FinePolicies) {
  const log = new Results();
  const filters = FineFilters.of(policies, await new FakeCluster().discovery(), log);
  return { filters, log };
}

const NAMESPACED: FinePolicies = {
  namespacedFilterPolicies: [
    { namespaces: ['team-*'], resourceFilters: [filter(['*'], { names: ['x'] })] },
    {
      namespaces: ['team-a'],
      resourceFilters: [
        filter(['configmaps'], {
          labelSelector: { matchLabels: { app: 'web' } },
          excludedNames: ['tmp-*'],
        }),
        filter(['Pod'], {
          orLabelSelectors: [{ matchLabels: { a: '1' } }, { matchLabels: { b: '1' } }],
        }),
      ],
    },
  ],
};

describe('filters for a namespace', () => {
  it('take the kinds that they list, by their own selectors, and no other one', async () => {
    const { filters } = await filtersOf(NAMESPACED);
    expect(filters?.takes('configmaps', 'team-a', { app: 'web' })).toBe(true);
    expect(filters?.takes('configmaps', 'team-a', {})).toBe(false);
    expect(filters?.takes('pods', 'team-a', { b: '1' })).toBe(true);
    expect(filters?.takes('pods', 'team-a', { c: '1' })).toBe(false);
    expect(filters?.takes('events', 'team-a', {})).toBe(false);
    expect(filters?.canTake('events', 'team-a')).toBe(false);
  });
  it('are those of the exact name before those of a pattern, wherever they stand', async () => {
    const { filters } = await filtersOf(NAMESPACED);
    expect(filters?.takes('events', 'team-b', {})).toBe(true);
    expect(filters?.canTake('events', 'team-b')).toBe(true);
    expect(filters?.takes('events', 'other', {})).toBeUndefined();
  });
  it('keep names out also where another item brings them; kinds that nobody lists get through then', async () => {
    const { filters } = await filtersOf(NAMESPACED);
    expect(filters?.refusesName('configmaps', 'team-a', 'tmp-1')).toBe(true);
    expect(filters?.refusesName('configmaps', 'team-a', 'keep')).toBe(false);
    expect(filters?.refusesName('events', 'team-a', 'tmp-1')).toBe(false);
    expect(filters?.refusesName('events', 'team-b', 'y')).toBe(true);
    expect(filters?.refusesName('events', 'team-b', 'x')).toBe(false);
  });
});

describe('filters for objects of the cluster', () => {
  it('count for the kinds that they list; the backup decides about all others', async () => {
    const { filters, log } = await filtersOf({
      clusterScopedFilterPolicy: {
        resourceFilters: [
          filter(['persistentvolumes', 'pods', 'nothing'], {
            labelSelector: { matchLabels: { a: '1' } },
            names: ['p'],
          }),
        ],
      },
    });
    expect(filters?.takes('persistentvolumes', '', { a: '1' })).toBe(true);
    expect(filters?.takes('persistentvolumes', '', {})).toBe(false);
    expect(filters?.takes('priorityclasses.scheduling.k8s.io', '', {})).toBeUndefined();
    expect(filters?.refusesName('persistentvolumes', '', 'q')).toBe(true);
    expect(filters?.isAbout('persistentvolumes', false)).toBe(true);
    expect(filters?.isAbout('priorityclasses.scheduling.k8s.io', false)).toBe(false);
    expect(log.warningCount).toBe(2);
  });
  it('are none where there is no policy', async () => {
    expect((await filtersOf({})).filters).toBeUndefined();
  });
});

describe('collection by filter policies', () => {
  it('lists once, without the selector of the backup, and keeps what each namespace wants', async () => {
    const cluster = new FakeCluster().namespaces('team-a', 'other');
    const labeled = (name: string, labels: object) => ({
      metadata: { ...named(name).metadata, labels },
    });
    cluster.add(
      'configmaps',
      labeled('team-a/web', { app: 'web' }),
      labeled('team-a/db', { app: 'db' }),
    );
    cluster.add(
      'configmaps',
      labeled('other/web', { app: 'web' }),
      labeled('other/db', { app: 'db' }),
    );
    cluster.add(
      'things.stable.example.com',
      labeled('team-a/t', { app: 'db' }),
      labeled('other/t', { app: 'db' }),
    );
    const discovery = await cluster.discovery();
    const log = new Results();
    const fine = FineFilters.of(NAMESPACED, discovery, log);
    const namespaces = cluster.filter();
    await using spool = await Spool.open({ bytesMax: 1 << 20 });
    const spec = { labelSelector: { matchLabels: { app: 'db' } } };
    const items = await collectItems({
      client: cluster,
      discovery,
      spec,
      namespaces,
      fine,
      spool,
      log,
      resources: scopedResourceFilter(discovery, {}, namespaces),
    });
    const found = [...items]
      .filter(({ type }) => type !== 'namespaces')
      .map(({ namespace, name, type }) => `${type} ${namespace}/${name}`);
    expect(found.sort()).toEqual([
      'configmaps other/db',
      'configmaps team-a/web',
      'things.stable.example.com other/t',
    ]);
    expect(cluster.asked.filter((text) => text.startsWith('list configmaps'))).toEqual([
      'list configmaps *',
    ]);
  });

  it('warns once about each name, pattern and selector of a policy that matches nothing', async () => {
    const cluster = new FakeCluster().namespaces('a', 'other');
    cluster.add('configmaps', named('a/one'), named('a/tmp-1'), named('other/two'));
    cluster.add('persistentvolumes', named('pv1'));
    const discovery = await cluster.discovery();
    const log = new Results(undefined, undefined, 'sentence');
    const typo = { matchLabels: { app: 'typo' } };
    const configMaps = { names: ['one', 'two', 'constructor', 'web-*', '*'] };
    const policies: FinePolicies = {
      clusterScopedFilterPolicy: {
        resourceFilters: [
          filter(['persistentvolumes'], { names: ['pv*', 'pv9'], excludedNames: ['gone'] }),
        ],
      },
      namespacedFilterPolicies: [
        {
          namespaces: ['a', 'b*'],
          resourceFilters: [
            filter(['ConfigMap'], { ...configMaps, excludedNames: ['tmp-*', 'tmpp-*'] }),
            filter(['*'], { labelSelector: typo }),
          ],
        },
        // No such namespace, which is told already.
        { namespaces: ['gone'], resourceFilters: [filter(['Pod'], { names: ['nobody'] })] },
      ],
    };
    const fine = FineFilters.of(policies, discovery, log);
    const namespaces = cluster.filter();
    await using spool = await Spool.open({ bytesMax: 1 << 20 });
    await collectItems({
      client: cluster,
      discovery,
      spec: {},
      namespaces,
      fine,
      spool,
      log,
      resources: scopedResourceFilter(discovery, {}, namespaces),
    });
    const { warnings } = log.lists;
    const of = 'the filter policy of a, b*';
    expect([...(warnings.velero ?? []), ...(warnings.cluster ?? [])].sort()).toEqual(
      [
        '"b*" of namespacedFilterPolicies selects nothing: the cluster has no namespace that matches',
        '"gone" of namespacedFilterPolicies selects nothing: the cluster has no such namespace',
        '"pv9" of names in clusterScopedFilterPolicy selects nothing: the cluster has no persistentvolumes of that name',
        '"gone" of excludedNames in clusterScopedFilterPolicy excludes nothing: the cluster has no persistentvolumes of that name',
        `"two" of names in ${of} selects nothing: the cluster has no ConfigMap of that name`,
        `"constructor" of names in ${of} selects nothing: the cluster has no ConfigMap of that name`,
        `"web-*" of names in ${of} selects nothing: the cluster has no ConfigMap whose name matches`,
        `"tmpp-*" of excludedNames in ${of} excludes nothing: the cluster has no ConfigMap whose name matches`,
        `The label selector "app=typo" in ${of} matches no object`,
      ].sort(),
    );
  });
});
