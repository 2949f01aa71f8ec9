import { describe, expect, it } from 'vitest';
import { BackedUp, idOf, ItemList } from '../../../src/backup/index.ts';
import { ObjectNames } from '../../../src/base/index.ts';

const CONFIG_MAPS = {
  group: '',
  version: 'v1',
  plural: 'configmaps',
  kind: 'ConfigMap',
  namespaced: true,
  verbs: ['list'],
} as unknown as Parameters<ItemList['add']>[1];
const PODS = { ...CONFIG_MAPS, plural: 'pods', kind: 'Pod' };
const NEWER = { ...CONFIG_MAPS, version: 'v2' };
const ref = (id: string): { namespace: string; name: string } => {
  const [namespace = '', name = ''] = id.split('/');
  return { namespace, name };
};
const ids = (list: ItemList): string[] => [...list].map((item) => `${item.kind} ${idOf(item)}`);

describe('the names of objects', () => {
  it('are found by kind, namespace and name, whatever is in them', () => {
    const names = new ObjectNames();
    const all = ['a', 'b', ''].flatMap((namespace) =>
      [
        'x',
        'y'.repeat(254),
        'z'.repeat(255),
        'z'.repeat(70_000),
        'ünlike',
        '名',
        'a\u0000b',
        '',
      ].map((name) => ({ namespace, name })),
    );
    const numbers = all.map((each) => names.add('v1/Pod', each));
    expect(numbers).toEqual(all.map((_, at) => at));
    for (const [at, each] of all.entries()) {
      expect(names.add('v1/Pod', each)).toBe(at);
      expect(names.find('v1/Pod', each)).toBe(at);
      expect({ namespace: names.namespaceOf(at), name: names.nameOf(at) }).toEqual(each);
      expect(names.find('v1/ConfigMap', each)).toBe(-1);
    }
    expect(names.find('v1/Pod', { namespace: 'c', name: 'x' })).toBe(-1);
    expect(names.find('v1/Pod', { namespace: 'a', name: 'w' })).toBe(-1);
    expect(names.size).toBe(all.length);
  });

  it('are told apart where one name is in many namespaces and of many kinds', () => {
    const names = new ObjectNames();
    const all = Array.from({ length: 6000 }, (_, at) => ({
      kind: `v1/Kind${at % 6}`,
      ref: { namespace: `space-${at % 1000}`, name: at < 3000 ? 'default' : 'kube-root-ca.crt' },
    }));
    const texts = (each: (typeof all)[number]): string => `${each.kind} ${idOf(each.ref)}`;
    const numbers = new Map<string, number>();
    for (const each of all) {
      const number = names.add(each.kind, each.ref);
      expect(number).toBe(numbers.get(texts(each)) ?? numbers.size);
      numbers.set(texts(each), number);
    }
    expect(names.size).toBe(new Set(all.map(texts)).size);
    for (const each of all) {
      expect(names.find(each.kind, each.ref)).toBe(numbers.get(texts(each)));
    }
  });

  it('come sorted by their bytes, of those that are asked for', () => {
    const names = new ObjectNames();
    const given = ['b/x', 'a-b/x', 'a/z', 'a/ü', 'a/\u{1F600}', 'a/\uFFFD', 'a/b', 'c/left'];
    for (const id of given) names.add('v1/Pod', ref(id));
    names.add('v1/Namespace', { namespace: '', name: 'b' });
    names.add('v1/Namespace', { namespace: '', name: 'a' });
    names.add('v1/Left', { namespace: '', name: 'a' });
    const isIn = (at: number): boolean =>
      names.namespaceOf(at) !== 'c' && names.kindOf(at) !== 'v1/Left';
    expect([...names.sorted(isIn)].map(([kind, found]) => [kind, [...found]])).toEqual([
      ['v1/Namespace', ['a', 'b']],
      ['v1/Pod', ['a-b/x', 'a/b', 'a/z', 'a/ü', 'a/\uFFFD', 'a/\u{1F600}', 'b/x']],
    ]);
  });
});

describe('the list of items', () => {
  it('has the answers of each question in its order, each object of a resource once, and those first that are named', () => {
    const list = new ItemList();
    list.add(1, CONFIG_MAPS, ref('b/one'), { at: 2 ** 33, length: 0 });
    list.add(2, PODS, ref('b/one'), undefined);
    list.add(0, CONFIG_MAPS, ref('a/one'), { at: 5, length: 7 });
    list.add(1, CONFIG_MAPS, ref('a/one'), undefined);
    list.add(0, CONFIG_MAPS, ref('a/two'), undefined);
    list.add(3, NEWER, ref('a/void'), undefined);
    list.forget(3);
    list.add(4, NEWER, ref('a/one'), undefined);
    const questions = [CONFIG_MAPS, CONFIG_MAPS, PODS, PODS, NEWER];
    const missing = list.arrange(
      questions.map((resource) => ({ resource })),
      ({ plural }) => (plural === 'pods' ? [] : ['b/one', 'a/gone', 'b/one']),
    );
    expect(missing).toEqual(['a/gone', 'b/one', 'a/gone']);
    expect(ids(list)).toEqual([
      'v1/ConfigMap b/one',
      ...['v1/ConfigMap a/one', 'v1/ConfigMap a/two', 'v1/Pod b/one', 'v2/ConfigMap a/one'],
    ]);
    expect([...list].map(({ place }) => place)).toEqual([
      { at: 2 ** 33, length: 0 },
      { at: 5, length: 7 },
      ...[undefined, undefined, undefined],
    ]);
    expect([...list].map(({ isOrdered }) => isOrdered)).toEqual([true, false, false, false, false]);
    expect([...list.namespaces()].sort()).toEqual(['a', 'b']);
    const [first] = list.find('configmaps', ref('a/one'));
    expect(list.find('configmaps', ref('a/one')).map(({ kind }) => kind)).toEqual([
      'v1/ConfigMap',
      'v2/ConfigMap',
    ]);
    expect(first && list.versionsOf(first).length).toBe(2);
    expect(first && [list.take(first), list.take(first), list.isTaken(first)]).toEqual([
      ...[true, false, true],
    ]);
    expect(list.find('pods', ref('a/one'))).toEqual([]);
    expect(list.find('configmaps', ref('a/void'))).toEqual([]);
    list.keep('pods', () => false);
    expect(list.length).toBe(4);
  });

  it('takes at most 64 bytes for each item beside its name, with what of it is in the backup', () => {
    const list = new ItemList();
    const count = 300_000;
    let letters = 0;
    for (let at = 0; at < count; at++) {
      const name = `config-${at}`;
      letters += name.length;
      list.add(0, CONFIG_MAPS, { namespace: `space-${at % 600}`, name }, { at, length: 900 });
    }
    list.arrange([{ resource: CONFIG_MAPS }], () => []);
    expect(list.find('configmaps', { namespace: 'space-1', name: 'config-601' }).length).toBe(1);
    const backedUp = new BackedUp(list.names);
    for (const number of list.nameNumbers()) backedUp.expect(number);
    for (const { kind, namespace, name } of list) backedUp.add(kind, { namespace, name });
    expect(backedUp.itemsBackedUp).toBe(count);
    // Bytes for items in the backup that no other part counts.
    expect(backedUp.bytes).toBeLessThan(2 * count);
    expect((list.bytes + backedUp.bytes - letters) / count).toBeLessThan(64);
    const [lists] = [...backedUp.resourceList].map(([kind, names]) => [kind, [...names].length]);
    expect(lists).toEqual(['v1/ConfigMap', count]);
  });
});
