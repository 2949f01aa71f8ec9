import { CodedError, type Secret } from '../../../base/index.ts';
import type { Passwords } from './one-repository.ts';
import { isSame, type PasswordState } from './secret-state.ts';

/**
 * Plans the old and the new password of a change, also for an unfinished one in the Secret. Throws
 * `PASSWORD_CHANGE_UNFINISHED`, `NO_PASSWORD_CHANGE`, `NEW_PASSWORD_UNUSABLE`.
 */
export function plannedPasswords(
  { current, next, previous }: PasswordState,
  { newPassword, undo }: { readonly newPassword: Secret | undefined; readonly undo: boolean },
): Passwords {
  const unfinished = next ?? (previous && current);
  if (unfinished && newPassword && !undo && !isSame(newPassword, unfinished)) {
    const text =
      'an earlier change to another password has not ended: finish it without naming a password, or take it back with --undo, before you begin a new one';
    throw new CodedError('PASSWORD_CHANGE_UNFINISHED', text);
  }
  if (undo) {
    if (next) return [next, current];
    const text = previous
      ? 'there is nothing to be taken back any more: the Secret has the password that counts; run the command without --undo to finish it'
      : 'there is nothing to be taken back: no change of all passwords was begun';
    throw new CodedError('NO_PASSWORD_CHANGE', text);
  }
  if (previous) return [previous, current];
  if (next) return [current, next];
  if (!newPassword) {
    const text = 'there is nothing to be finished: no change of all passwords was begun';
    throw new CodedError('NO_PASSWORD_CHANGE', text);
  }
  assertUsable(newPassword, current);
  return [current, newPassword];
}

/** All readers of the Secret trim blanks, like Velero. Throws `NEW_PASSWORD_UNUSABLE`. */
function assertUsable(password: Secret, current: Secret): void {
  const text = password.reveal();
  const refuse = (why: string): never => {
    throw new CodedError('NEW_PASSWORD_UNUSABLE', `${why}: nothing was changed`);
  };
  if (text === '') refuse('the new password is empty');
  if (text !== text.trim()) {
    refuse('the new password begins or ends with a blank, which Velero takes away');
  }
  if (isSame(password, current)) refuse('the new password is the same as the old one');
}
