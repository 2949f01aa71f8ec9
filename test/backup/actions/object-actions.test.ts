import { describe, expect, it } from 'vitest';
import { openObjectActions } from '../../../src/backup/index.ts';
import { CodedError } from '../../../src/base/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { aBackup } from '../../support/builders.ts';

const BACKUP = aBackup({ metadata: { name: 'b1', uid: 'u' }, spec: {} });
const context = { signal: new AbortController().signal };

function opened(bindings: object[] = [], fail: () => CodedError | undefined = () => undefined) {
  let lists = 0;
  const actions = openObjectActions({
    collect: ((
      _resource: unknown,
      _options: unknown,
      take: (item: unknown) => readonly unknown[],
    ) => {
      lists++;
      const failure = fail();
      if (failure) return Promise.reject(failure);
      return Promise.resolve(bindings.flatMap(take));
    }) as never,
  });
  const run = (name: string, item: object) => {
    const action = actions.actions.find((each) => each.name === name);
    if (!action) throw new Error(name);
    return action.execute(item as KubeObject, BACKUP, context);
  };
  return { ...actions, run, lists: () => lists };
}

describe('pods', () => {
  it('bring their PriorityClass and the claims of their volumes', async () => {
    const pod = {
      metadata: { name: 'p', namespace: 'a' },
      spec: {
        priorityClassName: 'urgent',
        volumes: [
          { name: 'x', persistentVolumeClaim: { claimName: 'data' } },
          { name: 'y', emptyDir: {} },
          { name: 'z', persistentVolumeClaim: { claimName: '' } },
        ],
      },
    };
    const related = [
      { group: 'scheduling.k8s.io', resource: 'priorityclasses', namespace: '', name: 'urgent' },
      { group: '', resource: 'persistentvolumeclaims', namespace: 'a', name: 'data' },
    ];
    const { run, blockActions } = opened();
    expect((await run('velero.io/pod', pod)).additionalItems).toEqual(related);
    const block = blockActions.find(({ name }) => name === 'velero.io/pod');
    expect(await block?.relatedItems(pod as never, BACKUP, context)).toEqual(related);
    expect((await run('velero.io/pod', { metadata: {}, spec: {} })).additionalItems).toEqual([]);
  });
});

describe('claims', () => {
  const bound = (spec: object, labels?: object) => ({
    metadata: { name: 'c', namespace: 'a', ...(labels && { labels }) },
    spec: { volumeName: 'pv', ...spec },
    status: { phase: 'Bound' },
  });

  it('that are bound lose what they were made of, and bring their volume', async () => {
    const given = bound({
      storageClassName: 's',
      dataSource: {},
      dataSourceRef: {},
      selector: { matchLabels: { a: 'b' } },
    });
    const { item, additionalItems } = await opened().run('velero.io/pv', given);
    expect(item).toMatchObject({ spec: { volumeName: 'pv', storageClassName: 's' } });
    expect(Object.keys((item as { spec?: object } | undefined)?.spec ?? {})).toEqual([
      'volumeName',
      'storageClassName',
    ]);
    expect(additionalItems).toEqual([
      { group: '', resource: 'persistentvolumes', namespace: '', name: 'pv' },
    ]);
    // The input object is unchanged.
    expect(given.spec).toHaveProperty('dataSource');
  });
  it('of static volumes keep their selector, without what restores have put there', async () => {
    const selector = { matchLabels: { a: 'b', 'velero.io/x': 'y' }, matchExpressions: [] };
    const { item } = await opened().run('velero.io/pv', bound({ storageClassName: '', selector }));
    expect(item).toMatchObject({
      spec: { selector: { matchLabels: { a: 'b' }, matchExpressions: [] } },
    });
    const only = { matchLabels: { 'velero.io/x': 'y' } };
    const { item: other } = await opened().run(
      'velero.io/pv',
      bound({ storageClassName: '', selector: only }),
    );
    expect((other as { spec?: { selector?: object } } | undefined)?.spec?.selector).toEqual({});
  });
  it('lose labels of restores and of other backups', async () => {
    const labels = {
      app: 'x',
      'velero.io/restore-name': 'r',
      'velero.io/volume-snapshot-name': 's',
      'backup.velero.io/must-include-additional-items': 'true',
      'velero.io/backup-name': 'other',
    };
    const { item } = await opened().run('velero.io/pv', bound({}, labels));
    expect(item?.metadata.labels).toEqual({ app: 'x' });
    const own = await opened().run('velero.io/pv', bound({}, { 'velero.io/backup-name': 'b1' }));
    expect(own.item?.metadata.labels).toEqual({ 'velero.io/backup-name': 'b1' });
    const none = await opened().run('velero.io/pv', bound({}, { 'velero.io/restore-name': 'r' }));
    expect(none.item?.metadata).not.toHaveProperty('labels');
  });
  it('that are not bound stay as they are', async () => {
    const { run } = opened();
    expect(
      await run('velero.io/pv', { metadata: {}, spec: {}, status: { phase: 'Pending' } }),
    ).toEqual({});
    expect(
      await run('velero.io/pv', {
        metadata: {},
        spec: { volumeName: 'x' },
        status: { phase: 'Lost' },
      }),
    ).toEqual({});
  });
});

describe('ServiceAccounts', () => {
  const binding = (name: string, role: object, ...subjects: object[]) => ({
    metadata: { name },
    roleRef: { kind: 'ClusterRole', ...role },
    subjects,
  });
  const account = { kind: 'ServiceAccount', namespace: 'a', name: 'runner' };

  it('bring the bindings that name them and their roles, from one list', async () => {
    const { run, lists } = opened([
      binding('one', { name: 'r1' }, account, account),
      binding('two', { name: 'r1' }, account),
      binding(
        'other',
        { name: 'r2' },
        { ...account, namespace: 'b' },
        { kind: 'User', name: 'runner' },
      ),
      { metadata: { name: 'empty' }, roleRef: { kind: 'ClusterRole', name: 'x' }, subjects: null },
    ]);
    const item = { metadata: { name: 'runner', namespace: 'a' } };
    const { additionalItems = [] } = await run('velero.io/service-account', item);
    expect(additionalItems.map(({ resource, name }) => `${resource} ${name}`)).toEqual([
      'clusterrolebindings one',
      'clusterrolebindings two',
      'clusterroles r1',
    ]);
    await run('velero.io/service-account', { metadata: { name: 'other', namespace: 'a' } });
    expect(lists()).toBe(1);
  });
  it('are an error while the list cannot be had, and asked for again', async () => {
    let fails = true;
    const { run } = opened([], () =>
      fails ? new CodedError('KUBE_UNAVAILABLE', 'away') : undefined,
    );
    const item = { metadata: { name: 'runner', namespace: 'a' } };
    await expect(run('velero.io/service-account', item)).rejects.toMatchObject({
      code: 'KUBE_UNAVAILABLE',
    });
    fails = false;
    expect((await run('velero.io/service-account', item)).additionalItems).toEqual([]);
  });
});
