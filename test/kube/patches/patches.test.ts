import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { codeOf, exactJson, messageOf, parseJsonExact } from '../../../src/base/index.ts';
import {
  applyJsonPatch,
  applyMergePatch,
  applyStrategicMergePatch,
  PATCH_FAILED,
  PATCH_PLACE_MISSING,
  PATCH_TEST_FAILED,
  type PatchOperation,
} from '../../../src/kube/index.ts';
import { type TypeRules, typeOfKind } from '../../../src/kube/patches/merge-keys.ts';
import { CASES, type PatchCase } from '../../golden/patches/cases.ts';

interface Answer {
  readonly error?: string;
  readonly result?: unknown;
}

const golden = (name: string): unknown =>
  parseJsonExact(readFileSync(new URL(`../../golden/patches/${name}`, import.meta.url), 'utf8'));
const ANSWERS = golden('answers.json') as Answer[];

function ours({ ask, document, patch }: PatchCase): Answer {
  try {
    return { result: apply(ask, document, patch) };
  } catch (error) {
    return { error: messageOf(error) };
  }
}

function apply(ask: PatchCase['ask'], document: unknown, patch: unknown): unknown {
  if (ask === 'json') return applyJsonPatch(document, patch as PatchOperation[]);
  if (ask === 'merge') return applyMergePatch(document, patch);
  return applyStrategicMergePatch(document as never, patch as never);
}

/** Keys in order, long numbers by their digits. */
const canonical = (value: unknown): unknown => JSON.parse(exactJson(value), sorted);
function sorted(
  this: unknown,
  _key: string,
  value: unknown,
  context?: { source?: string },
): unknown {
  if (typeof value === 'number') return `number ${context?.source ?? ''}`;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Our errors are of one line, and the one for a kind that has no Go types says more. */
const plainError = ({ error, result }: Answer): unknown =>
  error === undefined
    ? canonical(result)
    : error
        .replaceAll(/\s+/g, ' ')
        .trim()
        .replace(/(registered for version "[^"]*").*/, '$1');

describe('patches', () => {
  it('has an answer of the Go libraries for each case', () => {
    expect(ANSWERS.length).toBe(CASES.length);
  });

  it.each(CASES.map((each, i) => [i, each.ask, exactJson(each.patch), each] as const))(
    'does as the Go library does: %i, %s patch %s',
    (i, _ask, _text, each) => {
      const before = exactJson(each);
      expect(plainError(ours(each))).toEqual(plainError(ANSWERS[i] ?? {}));
      expect(exactJson(each)).toBe(before);
    },
  );

  it('tells a failed test, a missing place and any other failure apart', () => {
    const codes = (
      [
        { op: 'test', path: '/a', value: 2 },
        { op: 'replace', path: '/b', value: 2 },
        { op: 'add', path: '/l/9', value: 2 },
        { op: 'do', path: '/a' },
      ] as PatchOperation[]
    ).map((each) => {
      try {
        return applyJsonPatch({ a: 1, l: [] }, [each]);
      } catch (error) {
        return codeOf(error);
      }
    });
    expect(codes).toEqual([PATCH_TEST_FAILED, PATCH_PLACE_MISSING, PATCH_FAILED, PATCH_FAILED]);
  });

  it('takes a path without a slash in front for one that is not there', () => {
    expect(() => applyJsonPatch({ a: { b: 1 } }, [{ op: 'remove', path: 'a/b' }])).toThrow(
      'missing value',
    );
  });

  it('writes fields with names of JavaScript as any other', () => {
    const add = { op: 'add', path: '/__proto__', value: { polluted: true } };
    const result = applyJsonPatch({}, [add]) as object;
    expect(JSON.stringify(result)).toBe('{"__proto__":{"polluted":true}}');
    const patch = JSON.parse('{"metadata":{"annotations":{"__proto__":"x"}}}') as object;
    const document = { apiVersion: 'v1', kind: 'Pod', metadata: { annotations: { a: '1' } } };
    for (const patched of [
      applyMergePatch(document, patch),
      applyStrategicMergePatch(document, patch as never),
    ]) {
      expect(JSON.stringify(patched)).toContain('{"a":"1","__proto__":"x"}');
    }
    expect(({} as Record<string, unknown>).polluted).toBeUndefined();
  });
});

interface Field {
  readonly type?: string;
  readonly strategy?: string;
  readonly key?: string;
}

describe('merge keys', () => {
  const { kinds, types } = golden('merge-keys.json') as {
    readonly kinds: Record<string, Record<string, string>>;
    readonly types: Record<string, Record<string, Field>>;
  };

  /** As the Go types have it, in our form. */
  function rulesOf(type: string): TypeRules {
    const entries = Object.entries(types[type] ?? {}).map(
      ([name, { type: inner, strategy, key }]) => [
        name,
        {
          ...(strategy === 'merge' && { isMerged: true }),
          ...(strategy === 'replace' && { isReplaced: true }),
          ...(key !== undefined && { key }),
          ...(inner !== undefined && { type: rulesOf(inner) }),
        },
      ],
    );
    return Object.fromEntries(entries) as TypeRules;
  }
  const all = Object.entries(kinds).flatMap(([version, each]) =>
    Object.entries(each).map(([kind, type]) => ({ version, kind, type })),
  );

  it('knows every kind of the Go types', () => {
    expect(all.length).toBeGreaterThan(100);
    for (const { version, kind } of all) expect(typeOfKind(version, kind)).toBeDefined();
    expect(typeOfKind('v1', 'Deployment')).toBeUndefined();
    expect(typeOfKind('velero.io/v1', 'Backup')).toBeUndefined();
  });

  it('has the rules of all that is served in version v1 or newer', () => {
    const stable = all.filter(({ version }) => /(^|\/)v\d+$/.test(version));
    for (const { version, kind, type } of stable) {
      const isOld = version === 'autoscaling/v1';
      if (!isOld) expect([kind, typeOfKind(version, kind)]).toEqual([kind, rulesOf(type)]);
    }
  });
});
