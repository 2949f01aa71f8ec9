import { type Clock, type RandomBytes, SECOND_NS } from '../../base/index.ts';

/** `s`, 16 random hex digits, months of 30 days since 2000 (repo/content/sessions.go). */
export type SessionId = string & { readonly brand: 'SessionId' };

const EPOCH_SECONDS = 946_684_800n;
const MONTH_SECONDS = 30n * 24n * 3600n;

export function newSessionId(clock: Clock, random: RandomBytes): SessionId {
  const months = (clock.nowNs() / SECOND_NS - EPOCH_SECONDS) / MONTH_SECONDS;
  const digits = Buffer.from(random(8)).toString('hex');
  return `s${digits}${months.toString(16)}` as SessionId;
}

/** Session of a pack or marker: the first part that starts with `s`, after the first `-`. */
export function sessionOfBlob(id: string): string {
  return (
    id
      .split('-')
      .slice(1)
      .find((part) => part.startsWith('s')) ?? ''
  );
}
