import { describe, expect, it } from 'vitest';
import { systemClock } from '../../../src/base/index.ts';
import { expireEvents, lastLines } from '../../../src/dev/api-server/api-server.ts';
import { humanDuration } from '../../../src/dev/api-server/columns.ts';
import { mergePatch } from '../../../src/dev/api-server/patches.ts';
import { Store, type Stored } from '../../../src/dev/api-server/store.ts';
import { CONFIG_MAPS, EVENTS } from '../../../src/kube/index.ts';

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

  it('says when it is full, and takes more once something is deleted', () => {
    const store = new Store(systemClock, { bytesMax: 10_000 });
    const create = (name: string): Stored =>
      store.create(CONFIG_MAPS, NAMESPACE, { metadata: { name }, data: 'x'.repeat(4000) } as never);
    create('a');
    create('b');
    expect(() => create('c')).toThrow(/the cluster is full/);
    expect(store.list(CONFIG_MAPS)).toHaveLength(2);
    store.delete(CONFIG_MAPS, NAMESPACE, 'a');
    create('c');
    // What changed before the room for changes was used up is not told any more.
    expect(() => store.watch(CONFIG_MAPS, {}, 1, () => undefined)).toThrow(/too old/);
    expect(() => store.watch(CONFIG_MAPS, {}, store.version, () => undefined)).not.toThrow();
  });

  it('tries a change without making it', () => {
    const { store, add, names } = startStore();
    add('there');
    const { version } = store;
    const tried = store.trial(() => {
      store.delete(CONFIG_MAPS, NAMESPACE, 'there');
      return store.create(CONFIG_MAPS, NAMESPACE, { metadata: { name: 'tried' } } as Stored);
    });
    expect(tried.metadata.uid).toBeTruthy();
    expect(names()).toEqual(['there']);
    expect(store.version).toBe(version);
  });

  it('forgets events an hour after they were seen last', () => {
    const { store } = startStore();
    const now = Date.parse('2026-01-01T12:00:00Z');
    const seen = (name: string, lastTimestamp: string): void => {
      const event = { metadata: { name }, lastTimestamp } as unknown as Stored;
      const created = store.create(EVENTS, NAMESPACE, event);
      created.metadata.creationTimestamp = '2026-01-01T09:00:00Z';
    };
    seen('old', '2026-01-01T11:00:00Z');
    seen('young', '2026-01-01T11:00:01Z');
    expireEvents(store, now);
    expect(store.list(EVENTS).map(({ metadata }) => metadata.name)).toEqual(['young']);
  });
});

it.each([
  [-5_000, '<invalid>'],
  [-900, '0s'],
  [119_999, '119s'],
  [120_000, '2m'],
  [185_000, '3m5s'],
  [601_000, '10m'],
  [10_799_000, '179m'],
  [11_100_000, '3h5m'],
  [28_800_000, '8h'],
  [180_000_000, '2d2h'],
  [8 * 86_400_000, '8d'],
  [800 * 86_400_000, '2y70d'],
  [9 * 365 * 86_400_000, '9y'],
])('an age of %d ms is %s', (ms, text) => {
  expect(humanDuration(ms)).toBe(text);
});

it('the last lines of a log are whole lines', () => {
  expect(lastLines('a\nb\nc\n', 2)).toBe('b\nc\n');
  expect(lastLines('a\nb\nc', 2)).toBe('b\nc');
  expect(lastLines('a\nb\n', 0)).toBe('');
  expect(lastLines('a\n', 9)).toBe('a\n');
  expect(lastLines('a\n', NaN)).toBe('a\n');
});
