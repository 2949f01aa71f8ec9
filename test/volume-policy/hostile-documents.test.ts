import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isCode, messageOf } from '../../src/base/index.ts';
import { parseVolumePolicies, readPolicyFile } from '../../src/volume-policy/index.ts';

/** '' where it is taken; everything but our own error is thrown on. */
function refusalOf(text: string, parse: (text: string, source: string) => unknown): string {
  try {
    parse(text, 'f');
    return '';
  } catch (error) {
    if (isCode(error, 'BAD_VOLUME_POLICY')) return messageOf(error);
    throw error;
  }
}
const refused = (text: string): string => {
  const asText = refusalOf(text, (each) => parseVolumePolicies(each));
  refusalOf(text, readPolicyFile);
  return asText;
};

const TOO_MUCH = /too large or too deep|more than 1048576 characters/;

it('refuses what grows by its aliases', () => {
  const levels = Array.from({ length: 40 }, (_, i) => {
    const before = i === 0 ? 'x' : `*a${i - 1}`;
    return `  a${i}: &a${i} [${Array(10).fill(before).join(', ')}]\n`;
  });
  const bomb = `version: v1\nvolumePolicies:\n- action:\n    type: custom\n    parameters:\n${levels.join('').replaceAll(/^/gm, '    ')}`;
  expect(refused(bomb)).toMatch(TOO_MUCH);
  const merged = Array.from({ length: 30 }, (_, i) => {
    const before = i === 0 ? '{k: v}' : `{<<: [*m${i - 1}, *m${i - 1}], k${i}: v}`;
    return `      m${i}: &m${i} ${before}\n`;
  });
  const merging = `version: v1\nvolumePolicies:\n- action:\n    type: custom\n    parameters:\n${merged.join('')}`;
  expect(refused(merging)).toMatch(TOO_MUCH);
});

it('refuses an alias within what it stands for, and one without an anchor', () => {
  const parameters = (text: string): string =>
    `version: v1\nvolumePolicies: [{action: {type: custom, parameters: ${text}}}]`;
  expect(refused(parameters('&a {b: *a}'))).toMatch(TOO_MUCH);
  expect(refused(parameters('&a {<<: *a}'))).toMatch(TOO_MUCH);
  expect(refused(parameters('{b: *nobody}'))).toMatch(/nobody/);
});

it.each([
  ['lists in lists', `version: v1\nvolumePolicies: ${'['.repeat(200_000)}`],
  ['closed lists in lists', `version: v1\nvolumePolicies: ${'['.repeat(3000)}${']'.repeat(3000)}`],
  ['maps in maps', `version: v1\nvolumePolicies: ${'{a: '.repeat(100_000)}`],
  ['a block of blocks', `version: v1\nvolumePolicies:\n${'- '.repeat(100_000)}x`],
  ['a long text', `version: v1\nx: ${'y'.repeat(2 << 20)}`],
  ['keys that stand often', `version: v1\n${'a: b\n'.repeat(60_000)}`],
  ['many keys', `version: v1\n${Array.from({ length: 60_000 }, (_, i) => `k${i}: v\n`).join('')}`],
  [
    'many anchors',
    `version: v1\nvolumePolicies: [${Array.from({ length: 30_000 }, (_, i) => `&a${i} x`).join(',')}]`,
  ],
  ['many documents', 'version: v2\n---\n'.repeat(50_000)],
  [
    'a long number',
    `version: v1\nvolumePolicies: [{conditions: {capacity: "${'9'.repeat(900_000)},"}, action: {type: skip}}]`,
  ],
  ['nothing', ''],
  ['blanks', ' \n\t\n'],
  ['a NUL', '\0'],
  ['half of a pair', 'version: \ud800'],
])(
  'refuses %s, and goes on',
  (_, text) => {
    const refusal = refused(text);
    expect(refusal).not.toBe('');
    expect(refusal.length).toBeLessThan(4000);
  },
  120_000,
);

it('takes as many rules as a ConfigMap holds', () => {
  const rules = Array.from(
    { length: 5000 },
    (_, i) => `- {conditions: {storageClass: [c${i}]}, action: {type: skip}}\n`,
  );
  expect(parseVolumePolicies(`version: v1\nvolumePolicies:\n${rules.join('')}`).rules).toHaveLength(
    5000,
  );
});

it('ends for any text in policies, or in the one error that says what is wrong', () => {
  const words = fc.constantFrom(
    ...[
      'version',
      'v1',
      'volumePolicies',
      'conditions',
      'action',
      'type',
      'skip',
      'capacity',
      'csi',
      'pvcLabels',
    ],
    ...[
      ': ',
      ':',
      '- ',
      '\n',
      '\n  ',
      '\n    ',
      '[',
      ']',
      '{',
      '}',
      ', ',
      '"',
      "'",
      '&a ',
      '*a',
      '<<',
      '!!int ',
      '|',
      '>',
      '#',
      '---\n',
      '...\n',
      '? ',
      '\t',
      '%',
      '0,1Gi',
      '1e9',
      'null',
      '~',
      '__proto__',
      'constructor',
    ],
  );
  const texts = fc.oneof(
    fc.array(words, { maxLength: 40 }).map((list) => list.join('')),
    fc
      .array(words, { maxLength: 30 })
      .map(
        (list) =>
          `version: v1\nvolumePolicies:\n- action: {type: skip}\n  conditions: ${list.join('')}`,
      ),
    fc.string({ unit: 'binary', maxLength: 60 }),
  );
  fc.assert(
    fc.property(texts, (text) => {
      refused(text);
    }),
    { numRuns: 1500 },
  );
});

it('refuses wrong types wherever something is expected', () => {
  const value: fc.Arbitrary<unknown> = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 3 },
      fc.constantFrom(null, true, 1.5, 'v1', 'skip', '', -1, 'x'),
      fc.array(tie('value'), { maxLength: 3 }),
      fc.dictionary(fc.constantFrom('type', 'driver', 'a', 'kinds', '__proto__'), tie('value'), {
        maxKeys: 3,
      }),
    ),
  })).value;
  const conditions = fc.dictionary(
    fc.constantFrom(
      'capacity',
      'storageClass',
      'nfs',
      'csi',
      'volumeTypes',
      'pvcLabels',
      'pvcPhase',
      'pvcVolumeMode',
      'pvcAccessModes',
    ),
    value,
  );
  const document = fc.record(
    {
      version: fc.oneof(fc.constant('v1'), value),
      volumePolicies: fc.oneof(
        value,
        fc.array(
          fc.record({
            conditions: fc.oneof(conditions, value),
            action: fc.oneof(fc.constant({ type: 'skip' }), value),
          }),
          { maxLength: 3 },
        ),
      ),
      includeExcludePolicy: value,
      namespacedFilterPolicies: value,
      clusterScopedFilterPolicy: value,
    },
    { requiredKeys: [] },
  );
  fc.assert(
    fc.property(document, (each) => {
      const text = JSON.stringify(each);
      const refusal = refused(text);
      // An accepted document has only complete rules.
      if (refusal !== '') return;
      for (const { action } of parseVolumePolicies(text).rules)
        expect(action.type).toMatch(/^[a-z-]+$/);
    }),
    { numRuns: 1500 },
  );
});
