import { describe, expect, it } from 'vitest';
import { jsonPatch, strategicMergePatch } from '../../../src/dev/api-server/patches.ts';

describe('a JSON patch', () => {
  const before = { a: { 'x/y~z': [1, 2, 3] }, b: 1 };
  it.each([
    [[{ op: 'add', path: '/a/x~1y~0z/1', value: 9 }], { a: { 'x/y~z': [1, 9, 2, 3] }, b: 1 }],
    [[{ op: 'add', path: '/a/x~1y~0z/-', value: 9 }], { a: { 'x/y~z': [1, 2, 3, 9] }, b: 1 }],
    [[{ op: 'remove', path: '/a/x~1y~0z/0' }], { a: { 'x/y~z': [2, 3] }, b: 1 }],
    [[{ op: 'replace', path: '/b', value: null }], { a: { 'x/y~z': [1, 2, 3] }, b: null }],
    [[{ op: 'move', from: '/b', path: '/a' }], { a: 1 }],
    [
      [
        { op: 'copy', from: '/b', path: '/c' },
        { op: 'test', path: '/c', value: 1 },
      ],
      { a: { 'x/y~z': [1, 2, 3] }, b: 1, c: 1 },
    ],
    [[{ op: 'replace', path: '', value: { c: 1 } }], { c: 1 }],
  ])('%j', (patch, after) => {
    expect(jsonPatch(before, patch)).toEqual(after);
    expect(before).toEqual({ a: { 'x/y~z': [1, 2, 3] }, b: 1 });
  });

  it.each([
    [{ op: 'add' }],
    [[{ op: 'add', path: 5 }]],
    [[{ op: 'remove', path: '/none' }]],
    [[{ op: 'remove', path: '/a/x~1y~0z/3' }]],
    [[{ op: 'add', path: '/a/x~1y~0z/5', value: 1 }]],
    [[{ op: 'add', path: '/b/c', value: 1 }]],
    [[{ op: 'test', path: '/b', value: 2 }]],
    [[{ op: 'copy', from: '/none', path: '/c' }]],
    [[{ op: 'remove', path: '/__proto__' }]],
    [[{ op: 'other', path: '/b' }]],
    [Array(10_001).fill({ op: 'remove', path: '/b' })],
  ])('is refused: %j', (patch) => {
    expect(() => jsonPatch(before, patch)).toThrow();
  });

  it('changes no prototype', () => {
    const patch = [{ op: 'add', path: '/__proto__', value: { polluted: true } }];
    const after = jsonPatch({}, patch) as object;
    expect(Object.keys(after)).toEqual(['__proto__']);
    expect((after as { polluted?: boolean }).polluted).toBeUndefined();
  });
});

describe('a strategic merge patch', () => {
  const before = {
    finalizers: ['a', 'b'],
    containers: [
      { name: 'one', image: 'x', env: [{ name: 'A', value: '1' }] },
      { name: 'two', image: 'y' },
    ],
    accessModes: ['RWO'],
  };
  it.each([
    [
      { containers: [{ name: 'two', image: 'z' }] },
      [before.containers[0], { name: 'two', image: 'z' }],
    ],
    [{ containers: [{ name: 'one', $patch: 'delete' }] }, [before.containers[1]]],
    [{ containers: [{ $patch: 'replace' }, { name: 'new' }] }, [{ name: 'new' }]],
    [
      {
        $setElementOrder: 0,
        '$setElementOrder/containers': [{ name: 'new' }, { name: 'two' }, { name: 'one' }],
        containers: [{ name: 'new' }],
      },
      [{ name: 'new' }, before.containers[1], before.containers[0]],
    ],
    [
      { containers: [{ name: 'one', env: [{ name: 'B', value: '2' }], image: null }] },
      [
        {
          name: 'one',
          env: [
            { name: 'A', value: '1' },
            { name: 'B', value: '2' },
          ],
        },
        before.containers[1],
      ],
    ],
  ])('merges lists by their key: %j', (patch, containers) => {
    expect(strategicMergePatch(before, patch)).toEqual({ ...before, containers });
  });

  it('merges, deletes and replaces other lists as they are marked', () => {
    const patch = {
      finalizers: ['c'],
      '$deleteFromPrimitiveList/finalizers': ['a'],
      accessModes: ['RWX'],
      containers: null,
    };
    expect(strategicMergePatch(before, patch)).toEqual({
      finalizers: ['b', 'c'],
      accessModes: ['RWX'],
    });
    expect(strategicMergePatch({ a: 1, b: 2 }, { $retainKeys: ['b'], c: 3 })).toEqual({
      b: 2,
      c: 3,
    });
    expect(strategicMergePatch({ a: { b: 1 } }, { a: { $patch: 'replace', c: 2 } })).toEqual({
      a: { c: 2 },
    });
  });
});
