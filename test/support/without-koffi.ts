/** `node --import without-koffi.ts`: simulates a machine without the native library. */
import { registerHooks } from 'node:module';

registerHooks({
  resolve(specifier, context, next) {
    if (specifier === 'koffi') throw new Error('it is not installed');
    return next(specifier, context);
  },
});
