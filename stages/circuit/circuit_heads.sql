-- The heads of each operator's circuit: the fewest of largest effect that reach the target faithfulness.
-- All heads, which are the whole model's, always reach it: where no smaller circuit does, none was
-- found.
--
-- subject       VARCHAR   the model
-- operator      VARCHAR   add, subtract, multiply or divide
-- layer         SMALLINT  decoder layer, from 0
-- head          SMALLINT  head of the layer, from 0
-- rank          BIGINT    1 for the largest effect by $ranking, at the position where it is largest; equal ones by layer, then head
-- effect        DOUBLE    mean effect (Eq. 1) at the position where it is largest
-- logit_effect  DOUBLE    mean logit effect at the position where it is largest
-- reached       BOOLEAN   whether a circuit smaller than all heads reaches $target; where none
--                         does, all heads are here
with
    smallest as (
        select operator, max(heads) as all_heads,
            min(heads) filter (isfinite(faithfulness) and faithfulness >= $target) as heads
        from head_faithfulness where circuit = $ranking group by operator
    ),
    ranked as (
        select *, row_number() over (
            partition by operator order by if($ranking = 'effect', effect, logit_effect) desc nulls last, layer, head
        ) as rank
        from head_effects()
    )
select $subject as subject, operator, layer, head, rank, effect, logit_effect,
    coalesce(smallest.heads < all_heads, false) as reached
from ranked left join smallest using (operator)
where rank <= smallest.heads or smallest.heads is null
order by operator, rank
