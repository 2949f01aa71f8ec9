import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { codeOf, exactJson, messageOf, parseJsonExact } from '../../../src/base/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { ResourceModifiers } from '../../../src/restore/index.ts';
import { CASES } from '../../golden/modifiers/cases.ts';

interface Answer {
  readonly error?: string;
  readonly errors?: readonly string[];
  readonly result?: unknown;
}

const ANSWERS = parseJsonExact(
  readFileSync(new URL('../../golden/modifiers/answers.json', import.meta.url), 'utf8'),
) as Answer[];

const read = (rules: string): ResourceModifiers =>
  ResourceModifiers.fromConfigMap({
    metadata: { namespace: 'velero', name: 'rules' },
    data: { 'rules.yaml': rules },
  });

const canonical = (value: unknown): unknown =>
  JSON.parse(exactJson(value), (_key, each: unknown, context?: { source?: string }) =>
    typeof each === 'number' ? `number ${context?.source ?? ''}` : each,
  );

/** Velero says in which registry of its program it has looked, and repeats more of an object. */
const plain = (error: string): string =>
  error
    .replace(/(registered for version "[^"]*").*/, '$1')
    .replace(/('Kind' is missing in ).*/, '$1')
    .trim();

/** What Velero finds out for each item, we say before the restore begins. */
const isRefused = (answer: Answer): boolean =>
  (answer.errors ?? []).some((error) => error.includes('error in decoding json patch'));

describe('resource modifiers', () => {
  it('has an answer of Velero for each case', () => {
    expect(ANSWERS.length).toBe(CASES.length);
    expect(ANSWERS.filter(({ error }) => error !== undefined)).toEqual([]);
  });

  it.each(CASES.map((each, i) => [each.about, ANSWERS[i] ?? {}, each] as const))(
    'does as Velero does: %s',
    (_about, answer, { config, document, groupResource }) => {
      if (isRefused(answer)) {
        expect(() => read(config)).toThrow('this is no JSON patch');
        return;
      }
      const item = document as KubeObject;
      const before = exactJson(item);
      const modified = read(config).apply(item, groupResource);
      expect(modified.errors.map(plain)).toEqual((answer.errors ?? []).map(plain));
      expect(canonical(modified.item)).toEqual(canonical(answer.result));
      expect(exactJson(item)).toBe(before);
    },
  );

  const refusal = (rules: string): string => {
    try {
      read(rules);
      return '';
    } catch (error) {
      expect(codeOf(error)).toBe('BAD_MODIFIERS');
      return messageOf(error);
    }
  };

  it('says everything that is wrong, with its line and what would be right', () => {
    const text = refusal(`
version: v2
resourceModifierRules:
- conditions:
    groupResources: pods
    resourceNameRegex: "a(?=b)"
    labelSelector:
      matchExpressions:
      - {key: a, operator: Has}
    matches:
    - value: x
  patches:
  - operation: change
    path: spec/replicas
  - operation: move
    path: /a
  mergePatches:
  - patchData: "[1]"
- conditions:
    groupResource: pods
  strategicPatches:
  - patchData: |
      a: 1
      a: 2
`);
    expect(text.split('; ').map((each) => each.replace(/^.*?(?=line \d)/, ''))).toEqual([
      'line 2: version: unsupported resource modifier version "v2": it must be v1',
      'line 4: resourceModifierRules[0]: only one of patches, mergePatches, strategicPatches can be specified, and there are patches and mergePatches: write a rule for each',
      'line 4: resourceModifierRules[0].conditions.groupResource: groupResource cannot be empty: name a resource such as pods or deployments.apps',
      expect.stringContaining('is unknown: did you mean groupResource?'),
      expect.stringContaining('"a(?=b)" is no regular expression of Go'),
      expect.stringContaining('"Has" is not a valid label selector operator'),
      expect.stringContaining(
        'path is required for match rule: write a place such as /spec/replicas',
      ),
      expect.stringContaining(
        'unsupported operation "change": it is add, remove, replace, move, copy or test',
      ),
      expect.stringContaining('"spec/replicas" does not begin with a slash'),
      expect.stringContaining('from cannot be empty for move'),
      expect.stringContaining('and 1 more'),
    ]);
  });

  it('refuses rules that say nothing', () => {
    expect(refusal('version: v1')).toContain('resource modifier rules cannot be empty');
    expect(
      refusal('version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods}'),
    ).toContain('no patch data found');
    expect(
      refusal(
        'version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods}\n  patches: []',
      ),
    ).toContain('no patch data found');
  });

  it('refuses a value that Velero could not write into a patch', () => {
    const rules = (value: string) =>
      `version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods}\n  patches:\n  - {operation: add, path: /a, value: ${value}}`;
    for (const value of ['"007"', '"Infinity"', `'a"b'`, `'{"a": }'`, `'{},{}'`]) {
      expect(refusal(rules(value)), value).toContain('this is no JSON patch');
    }
    for (const value of ['"7"', `'"007"'`, '"a b"']) expect(refusal(rules(value))).toBe('');
  });

  it('wants exactly one key', () => {
    const metadata = { namespace: 'velero', name: 'rules' };
    expect(() => ResourceModifiers.fromConfigMap({ metadata, data: {} })).toThrow('has none');
    expect(() => ResourceModifiers.fromConfigMap({ metadata, data: { a: '', b: '' } })).toThrow(
      'illegal resource modifiers velero/rules configmap: it must have exactly one key whose value is the rules, and has 2',
    );
  });

  it('answers in time that grows with the name only, whatever the expression is', () => {
    const rules = `version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods, resourceNameRegex: "^(a+)+$"}\n  mergePatches:\n  - patchData: "{}"`;
    const name = `${'a'.repeat(250)}b`;
    const item = { apiVersion: 'v1', kind: 'Pod', metadata: { name, namespace: 'n' } };
    expect(read(rules).apply(item as KubeObject, 'pods').errors).toEqual([]);
  });
});
