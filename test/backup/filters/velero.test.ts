import { readFileSync } from 'node:fs';
import { beforeAll, describe, expect, it } from 'vitest';

import {
  listErrors,
  namespaceListErrors,
  scopedListErrors,
} from '../../../src/backup/filters/list-errors.ts';
import { NameLists } from '../../../src/backup/filters/name-lists.ts';
import { NamespaceFilter } from '../../../src/backup/filters/namespaces.ts';
import {
  oldResourceFilter,
  type ResourceFilter,
  scopedResourceFilter,
} from '../../../src/backup/filters/resources.ts';
import {
  CodedError,
  compileGlob,
  type LabelSelector,
  selectorOf,
} from '../../../src/base/index.ts';
import { Discovery } from '../../../src/kube/index.ts';

/**
 * The same questions, answered by Velero v1.18.3's own code: test/golden/velero/filters/README.md.
 */
interface Namespaces {
  readonly active: string[];
  readonly includes: string[];
  readonly excludes: string[];
}

type Lists = [string[], string[], string[], string[]];

interface Answers {
  readonly types: string[];
  readonly core: object;
  readonly named: object;
  readonly lists: { groupVersion: string; resources: string[] }[];
  readonly names: { name: string; found?: string; namespaced?: boolean }[];
  readonly globs: { pattern: string; names: string[]; taken: string[] }[];
  readonly namespaces: (Namespaces & {
    error?: string;
    everything: boolean;
    taken: string[];
    resolved: string[];
  })[];
  readonly old: {
    includes: string[];
    excludes: string[];
    cluster?: boolean;
    namespaces: Namespaces;
    included: string;
    excluded: string;
  }[];
  readonly scoped: {
    lists: Lists;
    policy?: Lists;
    namespaces: Namespaces;
    included: string;
    excluded: string;
  }[];
  readonly validation: {
    includes: string[];
    excludes: string[];
    plain: string[];
    namespaces: string[];
    scoped: string[];
  }[];
  readonly selectors: {
    selector: LabelSelector;
    error?: string;
    text: string;
    sets: { labels: Record<string, string>; matches: boolean }[];
  }[];
}

const answers = JSON.parse(
  readFileSync(new URL('../../golden/velero/filters/answers.json', import.meta.url), 'utf8'),
) as Answers;

let discovery: Discovery;

beforeAll(async () => {
  const byPath: Record<string, object> = {
    '/api': answers.core,
    '/apis': answers.named,
    '/version': { major: '1', minor: '36', gitVersion: 'v1.36.0' },
  };
  discovery = await Discovery.open({
    raw: ({ path }) => {
      const found = byPath[path];
      return found
        ? Promise.resolve(found)
        : Promise.reject(new CodedError('KUBE_NOT_FOUND', path));
    },
  });
});

describe('as Velero', () => {
  it('lists the groups of a server', () => {
    const lists = discovery.lists.map(({ group, version, resources }) => ({
      groupVersion: group === '' ? version : `${group}/${version}`,
      resources: resources.map(({ plural }) => plural).sort(),
    }));
    expect(lists).toEqual(answers.lists);
  });

  it('finds resources by all that people call them', () => {
    const found = answers.names.map(({ name }) => {
      const resource = discovery.find(name);
      if (!resource) return { name };
      const { group, version, plural, namespaced } = resource;
      return { name, found: `${group}/${version}/${plural}`, namespaced };
    });
    expect(found).toEqual(answers.names);
  });

  it('reads patterns', () => {
    const taken = answers.globs.map(({ pattern, names }) => {
      const lists = new NameLists([], [pattern]);
      return { pattern, names, taken: names.filter((name) => !lists.takes(name)) };
    });
    expect(taken).toEqual(answers.globs);
  });

  it('takes namespaces', () => {
    const names = [
      ...new Set([...answers.namespaces.flatMap(({ active }) => active), '*', 'other']),
    ];
    for (const { active, includes, excludes, ...velero } of answers.namespaces) {
      // Validation refuses it; where Velero meets it, it forgets the patterns behind it, too.
      if ([...includes, ...excludes].includes('[') && velero.error === undefined) continue;
      let filter: NamespaceFilter;
      try {
        filter = NamespaceFilter.of(active, includes, excludes);
      } catch (error) {
        expect({ includes, excludes, error: (error as Error).message }).toEqual({
          includes,
          excludes,
          error: expect.stringContaining(velero.error ?? 'no error') as string,
        });
        continue;
      }
      const taken = names.filter((name) => filter.takes(name));
      const answer = {
        everything: filter.isEverything,
        taken: taken.sort(),
        resolved: filter.resolved,
      };
      expect({ active, includes, excludes, ...answer }).toEqual({
        active,
        includes,
        excludes,
        ...velero,
        // Patterns that match nothing make a backup of everything without a namespace there.
        everything: velero.everything && !(filter.isExpanded && filter.includes.length === 0),
        taken: [...velero.taken].sort(),
      });
    }
  });

  const digits = (ask: (type: string) => boolean): string =>
    answers.types.map((type) => (ask(type) ? '1' : '0')).join('');
  const asked = (filter: ResourceFilter): object => ({
    included: digits((type) => filter.takes(type)),
    excluded: digits((type) => filter.refuses(type)),
  });
  const namespacesOf = ({ active, includes, excludes }: Namespaces): NamespaceFilter =>
    NamespaceFilter.of(active, includes, excludes);

  it('takes types by the older fields', () => {
    for (const { included, excluded, ...question } of answers.old) {
      const spec = {
        includedResources: question.includes,
        excludedResources: question.excludes,
        includeClusterResources: question.cluster,
      };
      const filter = oldResourceFilter(discovery, spec, namespacesOf(question.namespaces));
      expect({ question, ...asked(filter) }).toEqual({ question, included, excluded });
    }
  });

  const scopedLists = ([included, excluded, more, fewer]: Lists): object => ({
    includedNamespaceScopedResources: included,
    excludedNamespaceScopedResources: excluded,
    includedClusterScopedResources: more,
    excludedClusterScopedResources: fewer,
  });

  it('takes types by the newer fields, and by a policy beside them', () => {
    for (const { included, excluded, ...question } of answers.scoped) {
      const filter = scopedResourceFilter(
        discovery,
        scopedLists(question.lists),
        namespacesOf(question.namespaces),
        question.policy && scopedLists(question.policy),
      );
      expect({ question, ...asked(filter) }).toEqual({ question, included, excluded });
    }
  });

  it('says what is wrong with lists', () => {
    const said = answers.validation.map(({ includes, excludes }) => ({
      includes,
      excludes,
      plain: listErrors(includes, excludes),
      namespaces: namespaceListErrors(includes, excludes),
      scoped: scopedListErrors(includes, excludes),
    }));
    expect(said).toEqual(answers.validation);
  });

  it('reads label selectors, and refuses the same ones', () => {
    for (const { selector, error, text, sets } of answers.selectors) {
      if (error !== undefined) {
        expect(() => selectorOf(selector), error).toThrow();
        continue;
      }
      const read = selectorOf(selector);
      expect({
        selector,
        text: read.text,
        sets: sets.map(({ labels }) => ({ labels, matches: read.matches(labels) })),
      }).toEqual({ selector, text, sets });
    }
  });
});

describe('a pattern', () => {
  it('that cannot be read is refused with its code', () => {
    for (const pattern of ['[', '[]', '[a', '[b-a]', '[a-', '{a,b}'.repeat(9)]) {
      expect(() => compileGlob(pattern), pattern).toThrow(
        expect.objectContaining({ code: 'BAD_PATTERN' }) as Error,
      );
    }
  });

  it('of many stars is tried no longer than pattern times name', () => {
    const glob = compileGlob(`${'*a'.repeat(300)}b`);
    expect(glob('a'.repeat(900))).toBe(false);
  });
});
