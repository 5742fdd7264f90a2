// Replaces a view if the daemon requires authentication.
//
// Guarantees: the token is sent once, in a header, to this daemon alone, and the page does not store it.

import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import { signIn } from '../api/ask';

/** See the module. */
export function SignIn({ words, takesToken }: { words: string; takesToken: boolean }): JSX.Element {
  const [trouble, setTrouble] = useState<string | null>(null);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem('token') as HTMLInputElement;
    try {
      await signIn(field.value.trim());
      location.reload();
    } catch (error) {
      setTrouble(error instanceof Error ? error.message : 'the daemon does not answer');
      field.select();
    }
  };
  if (!takesToken) {
    return (
      <main>
        <h1 tabIndex={-1}>Not signed in</h1>
        <p class="prose" role="alert">{words}</p>
      </main>
    );
  }
  return (
    <main>
      <h1 tabIndex={-1}>Sign in</h1>
      <p class="prose">
        This daemon wants a token. <code>memctl token create NAME --role reader</code> makes one (an admin runs it).
      </p>
      <form class="sign-in" onSubmit={(event) => void submit(event)}>
        <label>
          Token <input name="token" type="password" autocomplete="off" required spellcheck={false} />
        </label>
        <button type="submit">Sign in</button>
      </form>
      {trouble !== null && <p class="trouble" role="alert">{trouble}</p>}
    </main>
  );
}
