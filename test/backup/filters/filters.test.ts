import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { compileGlob, parseSelector, selectorOf } from '../../../src/base/index.ts';
import { NamespaceFilter } from '../../../src/backup/filters/namespaces.ts';
import { oldResourceFilter, scopedResourceFilter } from '../../../src/backup/filters/resources.ts';

const name = fc.stringMatching(/^[a-c]{1,3}(-[a-c1-2]{1,2})?$/);
const pattern = fc.stringMatching(/^[a-c*?-]{1,5}$/).filter((text) => !text.includes('**'));

/** Two types of each scope, by name only. */
const resources = {
  find: (text: string) => {
    const found = [
      { plural: 'pods', namespaced: true },
      { plural: 'secrets', namespaced: true },
      { plural: 'nodes', namespaced: false },
      { plural: 'namespaces', namespaced: false },
    ].find(({ plural }) => plural === text);
    return (
      found && {
        ...found,
        group: '',
        version: 'v1',
        kind: 'X',
        singular: '',
        shortNames: [],
        verbs: [],
      }
    );
  },
};
const TYPES = ['pods', 'secrets', 'nodes', 'namespaces'];

describe('patterns', () => {
  it('match what a regular expression of the same meaning matches', () => {
    fc.assert(
      fc.property(pattern, name, (text, candidate) => {
        const source = text.replaceAll('*', '.*').replaceAll('?', '.');
        expect(compileGlob(text)(candidate)).toBe(new RegExp(`^${source}$`, 's').test(candidate));
      }),
    );
  });

  it('without special characters match themselves only', () => {
    fc.assert(fc.property(name, name, (a, b) => compileGlob(a)(b) === (a === b)));
  });
});

describe('a namespace filter', () => {
  const lists = fc.record({
    existing: fc.uniqueArray(name, { maxLength: 8 }),
    includes: fc.array(fc.oneof(name, pattern), { maxLength: 3 }),
    excludes: fc.array(fc.oneof(name, pattern), { maxLength: 3 }),
  });

  it('never takes an excluded namespace, and lists only what it takes', () => {
    fc.assert(
      fc.property(lists, ({ existing, includes, excludes }) => {
        const filter = NamespaceFilter.of(existing, includes, excludes);
        for (const each of [...filter.resolved, ...(filter.listed ?? [])]) {
          expect(excludes.some((text) => compileGlob(text)(each)) && existing.includes(each)).toBe(
            false,
          );
          expect(filter.takes(each)).toBe(true);
        }
      }),
    );
  });

  it('is everything only when it takes all that exist', () => {
    fc.assert(
      fc.property(lists, ({ existing, includes, excludes }) => {
        const filter = NamespaceFilter.of(existing, includes, excludes);
        if (filter.isEverything) expect(filter.resolved).toEqual([...existing].sort());
      }),
    );
  });

  it('takes none when its patterns match none, instead of all', () => {
    const filter = NamespaceFilter.of(['a', 'b'], ['x-*'], []);
    expect({
      taken: filter.takes('a'),
      listed: filter.listed,
      everything: filter.isEverything,
    }).toEqual({
      taken: false,
      listed: [],
      everything: false,
    });
  });

  it('does not take what is created later where patterns were given', () => {
    expect(NamespaceFilter.of(['app-1'], ['app-*'], []).takes('app-2')).toBe(false);
  });

  it('names what is asked for and not there', () => {
    expect(NamespaceFilter.of(['a'], ['a', 'gone'], []).missing).toEqual(['gone']);
    expect(NamespaceFilter.of(['a'], ['*'], []).missing).toEqual([]);
  });

  it('refuses a pattern that cannot be read, with its name', () => {
    expect(() => NamespaceFilter.of([], ['a*', 'b['], [])).toThrow(
      expect.objectContaining({
        code: 'BAD_NAMESPACE_PATTERN',
        message: `namespace "b[": wildcard pattern contains unclosed bracket '['`,
      }) as Error,
    );
  });
});

describe('filters of types', () => {
  const all = NamespaceFilter.of([], ['*'], []);
  const listed = fc.array(fc.constantFrom(...TYPES, 'nobody-knows', '*'), { maxLength: 3 });

  it('never take what is excluded, old or new', () => {
    fc.assert(
      fc.property(
        listed,
        listed,
        fc.option(fc.boolean(), { nil: undefined }),
        (more, fewer, cluster) => {
          const spec = {
            includedResources: more,
            excludedResources: fewer,
            includeClusterResources: cluster,
          };
          const old = oldResourceFilter(resources, spec, all);
          const scoped = scopedResourceFilter(
            resources,
            { includedNamespaceScopedResources: more, excludedNamespaceScopedResources: fewer },
            all,
          );
          for (const type of fewer.filter((each) => each !== '*')) {
            expect(old.takes(type) || !old.refuses(type)).toBe(false);
            if (type === 'pods' || type === 'secrets') expect(scoped.takes(type)).toBe(false);
          }
        },
      ),
    );
  });

  it('take nothing rather than all when nobody knows the one name that is included', () => {
    const filter = oldResourceFilter(resources, { includedResources: ['nobody-knows'] }, all);
    expect(TYPES.filter((type) => filter.takes(type))).toEqual([]);
  });

  it('refuse every type without a namespace when the cluster is not included', () => {
    const filter = oldResourceFilter(resources, { includeClusterResources: false }, all);
    expect(TYPES.filter((type) => filter.refuses(type))).toEqual(['nodes', 'namespaces']);
  });
});

describe('label selectors as text', () => {
  it('are read back to the same answers', () => {
    const keys = fc.constantFrom('app', 'tier', 'example.com/part');
    const values = fc.constantFrom('web', 'db', 'x');
    const selector = fc.record({
      matchLabels: fc.dictionary(keys, values, { maxKeys: 2 }),
      matchExpressions: fc.array(
        fc.oneof(
          fc.record({
            key: keys,
            operator: fc.constantFrom('In', 'NotIn'),
            values: fc.array(values, { minLength: 1, maxLength: 2 }),
          }),
          fc.record({ key: keys, operator: fc.constantFrom('Exists', 'DoesNotExist') }),
        ),
        { maxLength: 2 },
      ),
    });
    fc.assert(
      fc.property(selector, fc.dictionary(keys, values), (given, labels) => {
        const made = selectorOf(given);
        expect(parseSelector(made.text).matches(labels)).toBe(made.matches(labels));
      }),
    );
  });

  it.each([
    ['app=web', true],
    ['app == web', true],
    ['app!=web', false],
    ['tier', false],
    ['!tier', true],
    ['app in (web, db),!tier', true],
    ['app notin (web)', false],
    ['', true],
  ])('%s', (text, expected) => {
    expect(parseSelector(text).matches({ app: 'web' })).toBe(expected);
  });

  it.each([
    'a b',
    'app in ()x',
    '=web',
    'app=we b',
    '!!x',
    `${'k'.repeat(400)}=x`,
    'a=b,',
    'constructor/=x',
  ])('refuses %s', (text) => {
    expect(() => parseSelector(text)).toThrow(
      expect.objectContaining({ code: 'BAD_SELECTOR' }) as Error,
    );
  });

  it('do not take what every object has for a label', () => {
    expect(parseSelector('constructor').matches({})).toBe(false);
  });
});
