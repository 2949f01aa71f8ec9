import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { openObjectActions } from '../../../src/backup/index.ts';
import { messageOf } from '../../../src/base/index.ts';
import type { Backup, KubeObject } from '../../../src/kube/index.ts';
import { type ActionCase, backupFor, CASES } from '../../golden/backup-actions/cases.ts';
import { plain } from '../../golden/backup-actions/plain.ts';

interface Answer {
  readonly error?: string;
  readonly item?: object;
  readonly additionalItems?: readonly object[];
  readonly relatedItems?: readonly object[];
}

const ANSWERS = JSON.parse(
  readFileSync(new URL('../../golden/backup-actions/answers.json', import.meta.url), 'utf8'),
) as Answer[];
const { signal } = new AbortController();

const ASKED = CASES.map((each, i) => ({ each, answer: ANSWERS[i] as Answer })).filter(
  ({ each: { action } }) => ['pod', 'pv', 'service-account'].includes(action.slice(10)),
);

async function ask(each: ActionCase): Promise<Answer> {
  const collect = (_resource: unknown, _options: unknown, take: (one: unknown) => unknown[]) =>
    Promise.resolve((each.bindings ?? []).flatMap(take));
  const { actions, blockActions } = openObjectActions({ collect } as never);
  const item = each.item as KubeObject;
  const backup = backupFor(each) as unknown as Backup;
  const before = structuredClone(item);
  try {
    if (each.kind === 'ItemBlockAction') {
      const action = blockActions.find(({ name }) => name === each.action);
      if (!action) throw new Error(`no block action ${each.action}`);
      return { relatedItems: sorted(await action.relatedItems(item, backup, { signal })) };
    }
    const action = actions.find(({ name }) => name === each.action);
    if (!action) throw new Error(`no action ${each.action}`);
    const output = await action.execute(item, backup, { signal });
    return {
      item: output.item ?? item,
      additionalItems: sorted(output.additionalItems ?? []),
    };
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    expect(item).toEqual(before);
  }
}

/** Velero goes through maps of bindings and roles. */
const sorted = <T extends { group: string; resource: string; name: string }>(
  list: readonly T[],
): T[] =>
  [...list].sort((a, b) =>
    a.group === 'rbac.authorization.k8s.io' && a.resource === b.resource && a.name < b.name
      ? -1
      : 0,
  );

/**
 * No API server has such objects. The action keeps an unknown field as it is, and rather includes
 * an object than excludes it.
 */
const NOT_LOOKED_AT = 'a field that the action has no use for';
const KEPT_AS_STORED = "Velero's types lose what they do not know, and write sizes their own way";
const NO_SUCH_ROLE = 'a binding of the cluster has a role of the cluster, and roles have names';
const DATA = [{ group: '', resource: 'persistentvolumeclaims', namespace: 'app', name: 'data' }];
const VOLUME = [{ group: '', resource: 'persistentvolumes', namespace: '', name: 'volume-1' }];
const BINDING = [
  {
    group: 'rbac.authorization.k8s.io',
    resource: 'clusterrolebindings',
    namespace: '',
    name: 'b1',
  },
];
/**
 * Answers that differ on purpose: the additional items of our action, which leaves the item
 * unchanged, and the reason.
 */
const OTHERWISE: Readonly<Record<string, readonly [why: string, named: readonly object[]]>> = {
  'a pod with labels that are a text': [NOT_LOOKED_AT, DATA],
  'a pod with labels that are a text, for its block': [NOT_LOOKED_AT, DATA],
  'a claim whose size is a word': [NOT_LOOKED_AT, VOLUME],
  'a claim whose size is written otherwise': [KEPT_AS_STORED, VOLUME],
  'a claim with a field that is new': [KEPT_AS_STORED, VOLUME],
  'an account with a binding without a role': [NO_SUCH_ROLE, BINDING],
  'an account with a binding without a role, for its block': [NO_SUCH_ROLE, BINDING],
  'an account with a binding of a role of a namespace': [NO_SUCH_ROLE, BINDING],
  'an account with a binding of a role of a namespace, for its block': [NO_SUCH_ROLE, BINDING],
};

describe.each(ASKED)('$each.about', ({ each, answer }) => {
  const [why, named] = OTHERWISE[each.about] ?? [];
  it(why === undefined ? 'is as with Velero' : `is not as with Velero: ${why}`, async () => {
    const ours = await ask(each);
    if (named !== undefined) {
      expect(plain(answer)).not.toEqual(plain(ours));
      expect(ours.error).toBeUndefined();
      expect(ours.relatedItems ?? ours.additionalItems).toEqual(named);
      if (each.kind === undefined) expect(plain(ours.item)).toEqual(plain(each.item));
    }
    // In our words.
    else if (answer.error !== undefined)
      expect(ours.error).toMatch(/^the field \w+ of the item is no (text|list|object)$/);
    else expect(plain(ours)).toEqual(plain(answer));
  });
});

it("lacks one of Velero's actions, which changes nothing where no v1beta1 of definitions is served", () => {
  const remapped = CASES.map((each, i) => ({ each, answer: ANSWERS[i] })).filter(
    ({ each }) => each.action === 'velero.io/crd-remap-version',
  );
  expect(remapped).toHaveLength(6);
  for (const { each, answer } of remapped) expect(answer).toEqual({ item: each.item });
});

it('has an answer for each question, and a question for each difference', () => {
  expect(ANSWERS).toHaveLength(CASES.length);
  const abouts = CASES.map(({ about }) => about);
  expect(new Set(abouts).size).toBe(abouts.length);
  expect(abouts).toEqual(expect.arrayContaining(Object.keys(OTHERWISE)));
  const { actions, blockActions } = openObjectActions({} as never);
  const asked = new Set(ASKED.map(({ each }) => `${each.kind ?? ''} ${each.action}`));
  const own = [
    ...actions.map(({ name }) => ` ${name}`),
    ...blockActions.map(({ name }) => `ItemBlockAction ${name}`),
  ];
  expect([...asked].sort()).toEqual(own.sort());
});
