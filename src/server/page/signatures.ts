import type { BackupTrust } from '../../archive/index.ts';
import { lookup } from '../../base/index.ts';
import { type Html, html, type HtmlValue, named } from './html.ts';
import { numberText } from './layout.ts';
import type { LocationRow, RunRow } from './rows.ts';

/** Signatures in a location, at the last read of its bucket. */
export interface LocationTrust {
  readonly states: Readonly<Record<string, BackupTrust>>;
  /** Backups that were changed or removed. */
  readonly wrong: readonly { readonly name: string; readonly text: string }[];
}

/** Reads the signatures of all locations from time to time. */
export interface TrustSource {
  /** The last result, by location. Never waits for a bucket. */
  look(): ReadonlyMap<string, LocationTrust>;
}

type Trusts = ReadonlyMap<string, LocationTrust>;

/** The number of changed or removed backups. */
export const wrongCount = (trust: Trusts): number =>
  [...trust.values()].reduce((sum, { wrong }) => sum + wrong.length, 0);

/** Empty for a backup that was not read. */
export function signatureOf(trust: Trusts, { location, name }: RunRow): HtmlValue {
  const state = lookup(trust.get(location)?.states, name);
  if (!state) return '';
  const { signature, isEncrypted } = state;
  const word = signature === 'wrong' ? html`<strong class="tone-bad">✗ wrong</strong>` : signature;
  return isEncrypted ? [word, ', encrypted'] : word;
}

/** The known signatures in a location. */
export function signaturesOf(trust: Trusts, location: LocationRow): HtmlValue {
  const { states = {}, wrong = [] } = trust.get(location.name) ?? {};
  const counts = Map.groupBy(Object.values(states), ({ signature }) => signature);
  const encrypted = Object.values(states).filter(({ isEncrypted }) => isEncrypted).length;
  const texts = [
    ...[...counts].map(([signature, all]) => `${numberText(all.length)} ${signature}`).sort(),
    ...(encrypted > 0 ? [`${numberText(encrypted)} encrypted`] : []),
    ...(location.isSignatureRequired ? ['signatures required'] : []),
    ...(location.isEncrypting ? ['new backups are encrypted'] : []),
  ];
  return [texts.join(', '), ...wrong.slice(0, WRONG_SHOWN).map(wrongItem)];
}

/** The list of problems names all. */
const WRONG_SHOWN = 3;
const wrongItem = ({ name }: { readonly name: string }): Html =>
  html` <strong class="tone-bad">✗ ${named(name)}</strong>`;
