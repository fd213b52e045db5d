-- The heads of each operator's circuit: the fewest heads of largest effect that reach the target
-- faithfulness, at least one. The circuit of all heads is the whole model and always reaches it. If
-- no smaller circuit does, all heads are listed. The prompts that choose the number of heads also
-- measure the circuit's faithfulness, which is therefore slightly too high.
--
-- subject       VARCHAR   the model
-- operator      VARCHAR   add, subtract, multiply or divide
-- layer         SMALLINT  decoder layer, from 0
-- head          SMALLINT  attention head of the layer, from 0
-- rank          BIGINT    rank of the head by $ranking at the position where its effect is largest,
--                         from 1 for the largest; ties by layer, then head
-- effect        DOUBLE    mean effect (Eq. 1) at the position where it is largest
-- logit_effect  DOUBLE    mean logit effect at the position where it is largest, in logits
-- reached       BOOLEAN   whether a circuit smaller than all heads reaches $target; if false, the
--                         rows are all heads
with
    smallest as (
        select operator, max(heads) as all_heads,
            min(heads) filter (
                heads > 0 and isfinite(faithfulness) and faithfulness >= $target
            ) as heads
        from head_faithfulness where circuit = $ranking group by operator
    ),
    ranked as (
        select *, row_number() over (
            partition by operator
            order by if($ranking = 'effect', effect, logit_effect) desc nulls last, layer, head
        ) as rank
        from head_effects()
    )
select $subject as subject, operator, layer, head, rank, effect, logit_effect,
    coalesce(smallest.heads < all_heads, false) as reached
from ranked left join smallest using (operator)
where rank <= smallest.heads or smallest.heads is null
order by operator, rank
