import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/index.ts';
import { mergePatch } from '../../src/dev/patches.ts';
import { Store, type Stored } from '../../src/dev/store.ts';
import { CONFIG_MAPS } from '../../src/kube/index.ts';

const NAMESPACE = 'app';

function startStore(): {
  store: Store;
  add: (name: string, owners?: readonly string[]) => string;
  names: () => string[];
} {
  const store = new Store(systemClock);
  return {
    store,
    add(name, owners = []) {
      const ownerReferences = owners.map((uid) => ({ uid, name, kind: 'x', apiVersion: 'v1' }));
      const object = { metadata: { name, ownerReferences } } as unknown as Stored;
      return store.create(CONFIG_MAPS, NAMESPACE, object).metadata.uid;
    },
    names: () => store.list(CONFIG_MAPS).map(({ metadata }) => metadata.name),
  };
}

describe('the store of the embedded API server', () => {
  it('removes what has no owner left, also by several ways at once', () => {
    const { store, add, names } = startStore();
    const root = add('root');
    const child = add('child', [root]);
    add('grandchild', [root, child]);
    add('second', [root]);
    store.delete(CONFIG_MAPS, NAMESPACE, 'root');
    expect(names()).toEqual([]);
  });

  it('keeps what still has an owner', () => {
    const { store, add, names } = startStore();
    const owners = [add('a'), add('b')];
    add('both', owners);
    store.delete(CONFIG_MAPS, NAMESPACE, 'a');
    expect(names()).toEqual(['b', 'both']);
    store.delete(CONFIG_MAPS, NAMESPACE, 'b');
    expect(names()).toEqual([]);
  });

  it.each([
    { name: 5 },
    { name: 'a', labels: 5 },
    { name: 'a', finalizers: 'x' },
    { name: 'a', ownerReferences: [null] },
  ])('refuses metadata that it cannot read: %j', (metadata) => {
    const { store, names } = startStore();
    const object = { metadata } as unknown as Stored;
    expect(() => store.create(CONFIG_MAPS, NAMESPACE, object)).toThrow(/is invalid: metadata\./);
    expect(names()).toEqual([]);
  });

  it('is not changed by patches that name a prototype', () => {
    const patch = JSON.parse('{"__proto__":{"polluted":true}}') as unknown;
    mergePatch({ a: 1 }, patch);
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });
});
